"""What a machine might take, for tests that do not measure it."""

from dcfl.runs.estimate import Rates

RATES = Rates(
    visit=0.1,
    overhead=1.25,
    scored=0.1,
    warm_up=7.0,
    peak=10**9,
    cohort=2,
    memory=0,
    upload=10,
    up=110,
    down=100,
    state=100,
    visits=3,
    seconds=0.1,
)
