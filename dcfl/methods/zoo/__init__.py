"""Methods beyond the paper's, each compared with its authors' released code."""
