"""The smallest setting of ``reproduce`` that still makes everything."""

SMALL = ["--data", "scenes", "--seeds", "1", "--jobs", "1", "--data.size", "mini"]
MINI = [*SMALL, "--training.steps", "1", "--training.epochs", "1"]
