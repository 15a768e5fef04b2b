"""Rows of tables in Spark: definitions in SQL reckon with milliseconds, tables store TIMESTAMPs."""

from typing import TYPE_CHECKING, Final

from gatepost.pipeline.tables.schemas import HOURS_A_DAY, TableSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_LARGEST_MS: Final = (2**63 - 1) // 1000
_DAY: Final = f"date_from_unix_date(CAST(hour DIV {HOURS_A_DAY} AS INT))"


def to_reckoned(rows: "DataFrame") -> "DataFrame":
    """The rows with every TIMESTAMP as epoch milliseconds."""
    from pyspark.sql import functions as F

    return rows.select(
        *(_to_millis(F.col(each.name), each.dataType).alias(each.name) for each in rows.schema)
    )


def to_stored(table: TableSpec, rows: "DataFrame") -> "DataFrame":
    """The columns of the table that the rows have, with its types, and `day`."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    types = {each.name: each.dataType for each in StructType.fromJson(table.schema)}
    columns = [
        F.expr(_DAY) if name not in rows.columns else _to_times(F.col(name), types[name])
        for name in table.names
    ]
    return rows.select(
        *(column.alias(name) for column, name in zip(columns, table.names, strict=True))
    )


def _to_millis(column: "Column", kind: "DataType") -> "Column":
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, StructType, TimestampType

    if isinstance(kind, TimestampType):
        return F.unix_millis(column)
    if isinstance(kind, StructType):
        for each in kind:
            if each.dataType == TimestampType():
                column = column.withField(each.name, F.unix_millis(column[each.name]))
    if isinstance(kind, ArrayType):
        return F.transform(column, lambda each: _to_millis(each, kind.elementType))
    return column


def _to_times(column: "Column", kind: "DataType") -> "Column":
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, StructType, TimestampType

    if isinstance(kind, TimestampType):
        return _to_time(column)
    if isinstance(kind, ArrayType):
        return F.transform(column, lambda each: _to_times(each, kind.elementType))
    if isinstance(kind, StructType):
        for each in kind:
            if each.dataType == TimestampType():
                column = column.withField(each.name, _to_time(column[each.name]))
    return column.cast(kind)


def _to_time(column: "Column") -> "Column":
    """The time of these milliseconds; null beyond microseconds, so that one row stops no others."""
    from pyspark.sql import functions as F

    return F.when(column.between(-_LARGEST_MS, _LARGEST_MS), F.timestamp_millis(column))
