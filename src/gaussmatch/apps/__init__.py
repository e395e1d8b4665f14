"""What people use: the command line, the service with its page, reports."""
