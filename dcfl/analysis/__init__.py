"""What a trained model's representation looks like: `dcfl analyse`."""
