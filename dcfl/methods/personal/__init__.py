"""Methods that leave each client a model, or a part of one, for itself."""
