"""An invite as a QR code in the terminal."""

from io import StringIO

import segno


def render(text: str) -> str:
    """Two modules per character, light on dark; scanners read it from either kind of terminal."""
    out = StringIO()
    segno.make_qr(text, error="l").terminal(out=out, compact=True, border=2)
    return out.getvalue()
