"""What people do with the model of a finished run."""
