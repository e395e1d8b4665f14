"""The smallest setting of ``reproduce`` that still makes everything."""

MINI = ["--data", "scenes", "--seeds", "1", "--jobs", "1", "--data.size", "mini",
        "--training.epochs", "1"]  # fmt: skip
