"""Training, evaluation, studies over rows and seeds."""
