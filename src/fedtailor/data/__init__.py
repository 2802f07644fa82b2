"""Images, and which client holds which of them."""
