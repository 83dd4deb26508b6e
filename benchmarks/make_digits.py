"""Write dcfl/data/digits.npz from the copy of the digits that scikit-learn ships.

    pip install scikit-learn && python benchmarks/make_digits.py

Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository,
1998, https://doi.org/10.24432/C50P49 (CC BY 4.0): 1,797 images of 8x8 pixels with 17 grey levels.
The file holds the original values 0 to 16 in the original order.
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

TARGET = Path(__file__).parent.parent / "dcfl" / "data" / "digits.npz"


def main() -> None:
    digits = load_digits()
    images = digits.images.astype(np.uint8)
    if images.shape != (1797, 8, 8) or (images != digits.images).any():
        raise SystemExit("these are not the 1,797 digits of 17 grey levels")
    np.savez_compressed(TARGET, images=images, labels=digits.target.astype(np.uint8))
    print(f"{TARGET.name}: {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
