"""rows.py: builds a database in memory, of as many rows as the argument says, and queries it. Prints the answers."""

import sqlite3
import sys

db = sqlite3.connect(":memory:")
db.executescript(f"""
    CREATE TABLE item (id INTEGER PRIMARY KEY, shelf INTEGER, name TEXT, price REAL);
    CREATE TABLE shelf (id INTEGER PRIMARY KEY, label TEXT);
    WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {int(sys.argv[1])})
        INSERT INTO item
        SELECT i, i * 7919 % 1009, printf('item %x', i * 2654435761 % 4294967296), i % 1000 / 8.0 FROM n;
    INSERT INTO shelf SELECT DISTINCT shelf, 'shelf ' || shelf FROM item;
    CREATE INDEX by_shelf ON item (shelf, price);
""")
for query in (
    "SELECT count(*), sum(length(name)), total(price) FROM item",
    """SELECT label, count(*), max(price) FROM item JOIN shelf ON shelf.id = item.shelf
       GROUP BY label ORDER BY 2 DESC, 1 LIMIT 5""",
    "SELECT name FROM item WHERE shelf BETWEEN 100 AND 180 ORDER BY name LIMIT 5",
    "SELECT length(group_concat(name)) FROM item WHERE price < 20",
):
    print(*db.execute(query), sep="\n")
