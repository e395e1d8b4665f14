"""The mathematics, torch and numpy: Gaussians, similarities, losses, metrics."""
