"""What is done to every row: pure functions over Arrow tables, without Spark, files or clocks."""
