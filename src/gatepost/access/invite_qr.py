"""An invite as a QR code in the terminal."""

from io import StringIO

import segno


def render_qr(text: str) -> str:
    """Render `text` as a QR code, two modules per character; light and dark terminals both work."""
    out = StringIO()
    segno.make_qr(text, error="l").terminal(out=out, compact=True, border=2)
    return out.getvalue()
