"""Settings searched for by training: grids, random draws and Optuna."""
