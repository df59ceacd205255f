# SPDX-License-Identifier: Apache-2.0
"""What users of systems like this one have missed: whole sequences, on commands. Parts of them are tested where
they belong; here each runs as it was reported."""

import os
import time

import pytest

from harness import Child, in_child, put, read, wait_for, write
from jobs import Job, job, output, run

pytestmark = [pytest.mark.root]


def test_an_eviction_between_two_commands_is_invisible(mount):
    """A sandbox stops itself while the model is thinking, seconds before the next command."""
    d = mount(ttl='1')
    s = d.session().use()
    write(s / 'file', 'kept')
    assert output(s, 'cat file; export X=1; cd /tmp', 'first') == 'kept'
    s.wait_state('absent')
    provisioned = d.metrics()['wsmfs_provision_seconds_count']
    assert run(s, 'cat file', 'second') == ('0', 'kept', '')
    assert d.metrics()['wsmfs_provision_seconds_count'] == provisioned + 1
    assert s.error() == ''


def test_a_timeout_ends_the_process_tree_and_a_second_job_finds_nothing_of_it(mount):
    """The time-out kills the client, and the container computes on for 80 minutes."""
    s = mount(grace='1').session().use()
    j = job(s, timeout='1')
    begin = time.monotonic()
    j.start('echo so far; (trap "" TERM; while :; do sleep 0.1; done) & '
            'setsid sh -c "trap \\"\\" TERM; while :; do sleep 0.1; done" & wait')
    assert j.exit() in ('signal 15', 'signal 9')
    assert time.monotonic() - begin < 30
    assert (j.status()['timed_out'], j.text('stdout')) == (True, 'so far\n')
    # the guest, the shell that looks and what it calls
    names = output(s, 'for p in /proc/[0-9]*; do cat $p/comm; done', 'look').split()
    assert set(names) <= {'wsm-guest', 'sh', 'cat'} and names.count('sh') == 1, names


def test_output_never_blocks_exit_whichever_is_read_first(fresh):
    """A command with more output than a pipe holds stalls until the time-out."""
    for i, order in enumerate((('exit', 'stdout'), ('stdout', 'exit'))):
        j = job(fresh, f'j{i}').start('head -c 1000000 /dev/zero')
        got = in_child(lambda j=j, order=order: {name: j.raw(name) for name in order})
        assert (got['exit'], len(got['stdout'])) == (b'0\n', 1000000)


def test_an_interactive_question_does_not_hang_the_command(fresh):
    """Standard input that nobody opens is at its end; one that was opened before the start waits."""
    question = 'if read x; then echo "got $x"; else echo nothing; fi'
    assert run(fresh, question, 'closed')[:2] == ('0', 'nothing\n')
    j = job(fresh, 'opened')
    with open(j / 'stdin', 'wb', buffering=0) as f:
        j.start(question)
        j.wait_state('running')
        reader = Child(lambda: read(j / 'exit'))
        assert not reader.done() and j.text('log') == ''
        f.write(b'y\n')
    assert (reader.result(), j.text('stdout')) == ('0\n', 'got y\n')


def test_output_before_a_timeout_is_kept(mount):
    s = mount(grace='1').session().use()
    j = job(s, timeout='1').start('echo a; sleep 1000')
    assert j.exit() in ('signal 15', 'signal 9')
    assert (j.text('stdout'), j.status()['timed_out']) == ('a\n', True)


def test_mtimes_are_the_files_own_on_both_sides(fresh):
    """Reading works and editing is refused for ever: the cache compares the host's mtime of another file."""
    s = fresh.use()
    write(s / 'file', 'one')
    first = os.stat(s / 'file').st_mtime_ns
    assert {os.stat(s / 'file').st_mtime_ns for _ in range(100)} == {first}
    inside = output(s, 'stat -c %.9Y file; sleep 0.02; echo two > file; stat -c %.9Y file', 'change').split()
    second = os.stat(s / 'file').st_mtime_ns
    assert [f'{t // 10**9}.{t % 10**9:09}' for t in (first, second)] == inside and first != second
    assert read(s / 'file') == 'two\n'
    s.ctl('close')
    assert os.stat(s / 'file').st_mtime_ns == second


@pytest.mark.parametrize('how', ['close', 'eviction'])
def test_a_close_is_graceful_and_returns_when_it_is_over(mount, how):
    s = mount(ttl='1' if how == 'eviction' else '1h').session().use()
    bye = 'trap "sleep 1; echo bye > bye; exit 0" TERM; echo ready > ready; while :; do sleep 0.05; done'
    if how == 'eviction':
        run(s, f"setsid sh -c '{bye}' > /dev/null 2>&1 &")
        s.wait_state('absent')
    else:
        j = job(s).start(bye)
        wait_for(lambda: os.path.exists(s / 'ready'))
        put(f'{s.control}/ctl', 'close\n')
        assert Job(s, j.name).exit() == '0'
    assert read(f'{s.daemon.basedir}/alice/coder/bye') == 'bye\n'
