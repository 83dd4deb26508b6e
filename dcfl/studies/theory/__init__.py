"""What the paper's theorem and proposition claim, measured."""
