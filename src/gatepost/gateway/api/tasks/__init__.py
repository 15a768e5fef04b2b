"""Operations on tasks, and tasks as clients see them."""
