"""Many runs: trained in parallel, continued where they stopped, never trained twice."""
