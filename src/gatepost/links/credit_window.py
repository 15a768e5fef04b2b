"""Credit-based flow control: how many bytes an emitter may still send to one reader."""


class CreditWindow:
    """The reader grants `size` bytes. Sending spends them; the reader returns them as it stores.

    The emitter sends while any credit is left, so the last frame, or a commit group no larger than
    the window, may overdraw it. While credit is left, one batch at a time is read from the journal:
    `begin_read` claims that turn and `end_read` gives it back.
    """

    def __init__(self, size: int) -> None:
        self.size = self._credit = size
        self._is_reading = False

    @property
    def has_credit(self) -> bool:
        return self._credit > 0

    def spend(self, size: int) -> None:
        self._credit -= size

    def refund(self, size: int) -> None:
        # A reader may return too much; the credit never exceeds the granted size.
        self._credit = min(self.size, self._credit + size)

    def begin_read(self) -> bool:
        """Claim the read from the journal; False while one is under way or no credit is left."""
        if self._is_reading or not self.has_credit:
            return False
        self._is_reading = True
        return True

    def end_read(self) -> None:
        self._is_reading = False
