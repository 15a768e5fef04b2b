from tests.delivery.conftest import a, b, c, post, world
from tests.room.service.conftest import announcer, replica

__all__ = ["a", "announcer", "b", "c", "post", "replica", "world"]
