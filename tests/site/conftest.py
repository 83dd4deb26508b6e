"""The site's own extensions can be imported, as Sphinx imports them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "docs" / "_ext"))
