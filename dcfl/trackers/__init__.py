"""Trackers: programs that follow runs and show their curves. `output.trackers` names those that
dcfl knows, each a file here; anything with the three methods of `Tracker` is one too."""

from dcfl.trackers.tracker import FollowedRun, Tracker

__all__ = ["FollowedRun", "Tracker"]
