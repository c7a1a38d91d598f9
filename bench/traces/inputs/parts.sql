-- A table of parts: filled, indexed, asked, changed and asked again.
CREATE TABLE part(id INTEGER PRIMARY KEY, name TEXT, price REAL, note TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000)
    INSERT INTO part SELECT i, 'part ' || (i * 7919 % 30011), i * 1.5, hex(zeroblob(i % 200)) FROM n;
CREATE INDEX by_name ON part(name);
SELECT count(*), sum(price) FROM part WHERE name LIKE 'part 1%';
SELECT substr(name, 1, 6) AS prefix, count(*), length(group_concat(id)) FROM part GROUP BY prefix ORDER BY 2 DESC LIMIT 5;
UPDATE part SET note = note || name WHERE id % 3 = 0;
DELETE FROM part WHERE id % 5 = 0;
SELECT a.name, b.name FROM part a JOIN part b ON a.id = b.id * 2 ORDER BY a.price DESC LIMIT 10;
SELECT length(json_group_array(json_object('id', id, 'name', name))) FROM part WHERE id < 20000;
SELECT count(DISTINCT upper(name) || replace(note, '0', 'zero')) FROM part WHERE id % 7 = 0;
VACUUM;
