"""Models: encoders, the two-sided network, recipes, run folders, published and official ones."""
