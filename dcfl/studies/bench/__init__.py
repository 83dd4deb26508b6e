"""Speed: us, the floor and the peers on the same jobs."""
