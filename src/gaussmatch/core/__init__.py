"""The mathematics, pure torch: Gaussians, similarities, losses, metrics."""
