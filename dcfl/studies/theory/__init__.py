"""What the paper's theorem and proposition say, measured: `limits` counts, `page` shows."""
