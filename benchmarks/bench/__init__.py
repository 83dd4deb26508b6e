"""Speed: dcfl, the floor and other frameworks on the same jobs."""
