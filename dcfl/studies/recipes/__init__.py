"""The paper's tables and figures by name, and what lies beyond them."""
