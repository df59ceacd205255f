# SPDX-License-Identifier: Apache-2.0
"""Writes transactions to a database, beginning with a new connection every so often, and checks that
its own earlier ones are there. Begins with the first line on standard input.

    sqlite_writer.py DATABASE JOURNAL-MODE WHO TRANSACTIONS SYNCHRONOUS"""

import sqlite3
import sys

RECONNECT_AFTER = 20


def connect(path, mode, synchronous):
    db = sqlite3.connect(path, timeout=120, isolation_level=None)
    db.execute('pragma busy_timeout = 120000')
    if mode != 'wal':  # which is a property of the file, and is set before
        db.execute(f'pragma journal_mode = {mode}')
    db.execute(f'pragma synchronous = {synchronous}')
    return db


def main():
    path, mode, who, transactions, synchronous = sys.argv[1:]
    db = None
    sys.stdin.readline()
    for n in range(int(transactions)):
        if n % RECONNECT_AFTER == 0:
            if db:
                db.close()
            db = connect(path, mode, synchronous)
        db.execute('begin immediate')
        mine = db.execute('select count(*) from t where who = ?', (who,)).fetchone()[0]
        if mine != n:
            print(f'{who} finds {mine} of its {n} transactions')
            return 1
        db.execute('insert into t values (?, ?, ?)', (who, n, 'x' * (n % 300)))
        db.execute('update sums set total = total + 1')
        db.execute('commit')
    db.close()
    return 0


sys.exit(main())
