from dcfl.simulation.instructions import avoid_broken_instructions


def pytest_configure() -> None:
    avoid_broken_instructions()  # before a test has torch convolve anything
