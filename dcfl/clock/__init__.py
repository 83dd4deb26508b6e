"""Virtual time: how long clients take, who is asked, and whose replies count when."""
