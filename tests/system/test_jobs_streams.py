# SPDX-License-Identifier: Apache-2.0
"""Output that is followed, input that is streamed, and what may wait for what."""

import asyncio
import hashlib
import os
import select
import signal
import threading

import pytest

from harness import WSMFS, Child, ChildDied, errno_of, in_child, open_errno, read, sh, wait_for, write
from jobs import Job, files_kept, job, opened, output, readable, run
from workbench import tmpfs

pytestmark = pytest.mark.root

GO = 'until [ -e go ]; do sleep 0.02; done'


def test_stdout_follows_a_running_job(fresh):
    j = job(fresh).start(f'echo one; {GO}; echo two')
    with opened(j / 'stdout', os.O_RDONLY) as fd:
        assert in_child(lambda: os.read(fd, 100)) == b'one\n'
        reader = Child(lambda: os.read(fd, 100))
        write(fresh / 'go', '')
        assert reader.result() == b'two\n'
        assert in_child(lambda: os.read(fd, 100)) == b''
        assert in_child(lambda: os.read(fd, 100)) == b''


def test_a_late_reader_gets_everything(fresh):
    j = job(fresh).start(f'seq 1000; {GO}; seq 1000')
    j.wait_output('\n1000\n')
    reader = Child(lambda: read(j / 'stdout'))
    write(fresh / 'go', '')
    want = ''.join(f'{i}\n' for i in range(1, 1001)) * 2
    assert reader.result() == want
    assert j.text('stdout') == want


@pytest.mark.parametrize('how', ['rmdir', 'job_keep'])
@pytest.mark.parametrize('name', ['stdout', 'log'])
def test_who_has_it_open_reads_all_of_it_though_the_job_is_removed(mount, name, how):
    d = mount(**({'job_keep': 1} if how == 'job_keep' else {}))
    j = job(d.session()).start('seq 30000')
    assert j.exit() == '0'
    with open(j / name, 'rb', buffering=0) as f:
        if how == 'rmdir':
            os.rmdir(j.dir)
        else:
            wait_for(lambda: not os.path.exists(j.dir))
        assert f.read() == b''.join(b'%d\n' % i for i in range(1, 30001))
    wait_for(lambda: not files_kept(d))


def test_a_running_stream_is_a_pipe(fresh):
    j = job(fresh).start(f'echo x; {GO}')
    j.wait_output('x')
    with opened(j / 'stdout', os.O_RDONLY) as fd:
        assert errno_of(os.lseek, fd, 0, os.SEEK_END) == 'ESPIPE'
    assert os.stat(j / 'stdout').st_size == 0
    write(fresh / 'go', '')
    j.exit()
    assert os.stat(j / 'stdout').st_size == 2
    with opened(j / 'stdout', os.O_RDONLY) as fd:
        assert os.lseek(fd, 1, os.SEEK_SET) == 1 and os.read(fd, 10) == b'\n'


def test_o_nonblock_says_that_there_is_nothing_yet(fresh):
    j = job(fresh).start(f'{GO}; echo x; exit 3')
    j.wait_state('running')
    with opened(j / 'stdout', os.O_RDONLY | os.O_NONBLOCK) as out, \
            opened(j / 'exit', os.O_RDONLY | os.O_NONBLOCK) as code:
        assert errno_of(os.read, out, 10) == 'EAGAIN'
        assert errno_of(os.read, code, 10) == 'EAGAIN'
        assert not readable(out) and not readable(code)
        write(fresh / 'go', '')
        assert readable(code, 30) and os.read(code, 10) == b'3\n'
        assert os.read(code, 10) == b''
        assert readable(out) and os.read(out, 10) == b'x\n'
        assert os.read(out, 10) == b''


def test_poll_wakes_when_output_comes(fresh):
    j = job(fresh).start(f'{GO}; echo x; sleep 1000')
    with opened(j / 'stdout', os.O_RDONLY) as fd:
        waiter = Child(lambda: readable(fd, 50))
        assert not readable(fd)
        write(fresh / 'go', '')
        assert waiter.result() is True
        assert os.read(fd, 10) == b'x\n'
        assert not readable(fd)
    j.ctl('kill')


def test_epoll_works_too(fresh):
    j = job(fresh).start(f'{GO}; echo x')
    with opened(j / 'stdout', os.O_RDONLY | os.O_NONBLOCK) as fd:
        epoll = select.epoll()
        epoll.register(fd, select.EPOLLIN)
        assert epoll.poll(0) == []
        write(fresh / 'go', '')
        assert [e for e, _ in epoll.poll(30)] == [fd]
        epoll.close()


def test_a_reader_that_waits_can_be_interrupted(fresh):
    j = job(fresh).start('sleep 1000')
    for name in ('stdout', 'exit'):
        child = Child(lambda name=name: read(j / name))

        def ends(child=child):
            child.signal(signal.SIGTERM)
            return child.done()

        wait_for(ends)
        with pytest.raises(ChildDied):
            child.result()
    j.wait_state('running')
    j.ctl('kill')
    assert j.exit().startswith('signal')


@pytest.mark.concurrency
def test_many_jobs_are_followed_from_one_thread(fresh):
    made = [job(fresh, f'j{i}') for i in range(60)]

    async def follow(j):
        loop = asyncio.get_running_loop()
        fd = os.open(j / 'stdout', os.O_RDONLY | os.O_NONBLOCK)
        text = b''
        while True:
            ready = loop.create_future()
            loop.add_reader(fd, lambda: ready.done() or ready.set_result(None))
            await asyncio.wait_for(ready, 60)
            loop.remove_reader(fd)
            try:
                piece = os.read(fd, 65536)
            except BlockingIOError:
                continue
            if not piece:
                os.close(fd)
                return text
            text += piece

    async def all_of_them():
        tasks = [asyncio.create_task(follow(j)) for j in made]
        for i, j in enumerate(made):
            j.start(f'echo {i}; sleep 0.0{i % 10}; echo {i}')
        return await asyncio.gather(*tasks)

    assert asyncio.run(all_of_them()) == [f'{i}\n{i}\n'.encode() for i in range(60)]


@pytest.mark.concurrency
def test_a_hundred_readers_of_one_stdout_get_the_same(fresh):
    j = job(fresh).start(f'{GO}; seq 50000')
    results = []

    def follow():
        results.append(hashlib.sha256(j.raw('stdout')).hexdigest())

    threads = [threading.Thread(target=follow, daemon=True) for _ in range(100)]
    for t in threads:
        t.start()
    write(fresh / 'go', '')
    for t in threads:
        t.join(100)
    want = hashlib.sha256(''.join(f'{i}\n' for i in range(1, 50001)).encode()).hexdigest()
    assert results == [want] * 100


def test_output_never_blocks_exit_when_a_reader_reads_late(fresh):
    j = job(fresh).start('head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2')
    assert j.exit() == '0'
    assert j.raw('stdout') == b'\0' * 1000000
    assert j.raw('stderr') == b'\0' * 1000000


def test_past_its_limit_a_job_waits_for_a_reader(mount):
    s = mount(job_output_max='4M').session()
    j = job(s).start('head -c 30000000 /dev/zero; echo end >&2')
    wait_for(lambda: j.status()['stdout_bytes'] > 4 << 20)
    assert j.state() == 'running'
    size = j.status()['stdout_bytes']
    assert size < 8 << 20
    got = in_child(lambda: len(j.raw('stdout')))
    assert got == 30000000
    assert j.exit() == '0' and j.text('stderr') == 'end\n'
    status = j.status()
    assert status['stdout_bytes'] == 30000000 and status['dropped_bytes'] > 20000000
    rest = j.raw('stdout')
    assert len(rest) == 30000000 - status['dropped_bytes'] == os.stat(j / 'stdout').st_size
    used = int(sh(f'du -s --block-size=1 {s.daemon.top}/state/jobs').split()[0])
    assert used < 10 << 20
    assert output(s, 'echo other', name='k') == 'other\n'


def test_a_reader_that_stops_stops_only_its_job(mount):
    s = mount(job_output_max='1M').session()
    j = job(s).start('cat /dev/zero')
    with opened(j / 'stdout', os.O_RDONLY) as fd:
        os.read(fd, 1000)
        wait_for(lambda: j.status()['stdout_bytes'] > 1 << 20)
        for i in range(5):
            assert output(s, 'seq 1000 | tail -n 1', name=f'k{i}') == '1000\n'
        size = j.status()['stdout_bytes']
        assert size < 8 << 20
    j.ctl('kill')
    assert j.exit().startswith('signal')


def test_a_reader_that_keeps_up_gets_all_of_what_is_more_than_may_be_kept(mount):
    """It waits with nothing left to read just when there is too much: nobody else would make room."""
    s = mount(job_output_max='1M').session()

    def follow(j):
        with opened(j / 'stdout', os.O_RDONLY) as fd:
            return sum(iter(lambda: len(os.read(fd, 128 << 10)), 0))

    # so slow that the reader waits for each piece
    j = job(s).start('i=0; while [ $i -lt 200 ]; do head -c 16384 /dev/zero; i=$((i+1)); done')
    assert Child(lambda: follow(j)).result(60) == 200 << 14
    assert j.exit() == '0'


def test_one_tenant_that_fills_its_spool_does_not_stop_others(mount):
    d = mount(job_output_max='0', spool_max='8M')
    a, b = d.session('alice/coder/s1'), d.session('bob/coder/s1')
    hogs = [job(a, f'j{i}').start('cat /dev/zero') for i in range(3)]
    wait_for(lambda: sum(j.status()['stdout_bytes'] for j in hogs) >= 4 << 20)
    assert len(output(b, 'head -c 500000 /dev/zero')) == 500000
    assert all(j.state() == 'running' for j in hogs)
    for j in hogs:
        j.ctl('kill')
        j.exit()
        os.rmdir(j.dir)
    assert len(output(a, 'head -c 3000000 /dev/zero', name='k')) == 3000000


def test_a_job_that_is_read_goes_on_though_other_output_fills_its_users_share(mount):
    s = mount(job_output_max='0', spool_max='8M').session()
    hog = job(s, 'hog').start('cat /dev/zero')
    wait_for(lambda: hog.status()['stdout_bytes'] >= 4 << 20)
    j = job(s).start('head -c 20000000 /dev/zero')
    wait_for(lambda: j.status()['stdout_bytes'])
    before = j.status()['stdout_bytes']
    assert before < 20000000  # it waits
    assert Child(lambda: len(j.raw('stdout'))).result(60) == 20000000
    assert j.exit() == '0'
    assert hog.state() == 'running'
    hog.ctl('kill')


# ── standard input ──────────────────────────────────────────────────────────────────────────

def test_without_stdin_a_job_reads_the_end_at_once(fresh):
    assert run(fresh, 'read x; echo "got $x"')[:2] == ('0', 'got \n')


def test_what_was_written_before_the_start_is_read_then_the_end(fresh):
    j = job(fresh, stdin='y\nz\n').start('cat; echo end')
    assert j.out() == 'y\nz\nend\n'


def test_stdin_that_is_kept_open_goes_on(fresh):
    j = job(fresh)
    fd = os.open(j / 'stdin', os.O_WRONLY)
    j.start('read x; echo "got $x"; read y; echo "and $y"; cat')
    os.write(fd, b'one\n')
    j.wait_output('got one')
    os.write(fd, b'two\nrest')
    j.wait_output('and two')
    assert j.state() == 'running'
    os.close(fd)
    assert j.exit() == '0' and j.text('stdout') == 'got one\nand two\nrest'


def test_the_last_writers_close_is_the_end(fresh):
    j = job(fresh)
    first, second = os.open(j / 'stdin', os.O_WRONLY), os.open(j / 'stdin', os.O_WRONLY)
    j.start('cat')
    os.write(first, b'a')
    os.close(first)
    j.wait_output('a')
    assert j.state() == 'running'
    os.write(second, b'b')
    os.close(second)
    assert j.exit() == '0' and j.text('stdout') == 'ab'


def test_stdin_is_written_in_any_amount_before_the_start(fresh):
    want = os.urandom(1 << 20) * 5
    j = job(fresh, stdin=want).start('sha256sum')
    assert j.out().split()[0] == hashlib.sha256(want).hexdigest()


def test_input_of_jobs_that_do_not_run_costs_no_descriptor_and_of_ended_ones_no_disk(mount):
    d = mount()
    s = d.session()
    output(s, 'true', name='first')
    before = d.descriptors()
    for i in range(50):
        job(s, f'new{i}', stdin='x\n')
        assert run(s, 'wc -l', f'ended{i}', stdin='x\ny\n')[1] == '2\n'
    wait_for(lambda: d.descriptors() < before + 25)
    wait_for(lambda: len([n for n in files_kept(d) if n.endswith('.stdin')]) == 50)
    assert run(s, 'cat', 'last', stdin='z')[1] == 'z'
    j = Job(s, 'new7').start('cat')
    assert j.out() == 'x\n'


def test_running_jobs_leave_descriptors_to_others(mount):
    d = mount.prepare()
    d.program = f'{d.top}/limited'
    write(d.program, f'#!/bin/sh\nulimit -n 1000\nexec {WSMFS} "$@"\n')
    os.chmod(d.program, 0o755)
    d.start()
    s, other = d.session('alice/coder/s1'), d.session('bob/coder/s1')
    made = [job(s, f'j{i}', stdin='x').start('cat; echo err >&2; until [ -e go ]; do sleep 1; done; echo end')
            for i in range(250)]
    for j in made:
        j.wait_output('err', 200)
    assert d.descriptors() < 500
    write(other / 'file', 'text')
    assert output(other, 'cat file') == 'text'
    write(s / 'go', '')
    for j in made:
        assert j.exit(200) == '0' and j.text('stdout') == 'xend\n' and j.text('stderr') == 'err\n'


def test_input_written_before_the_start_counts_in_the_spool(mount):
    d = mount(spool_max='8M')
    a, b = d.session('alice/coder/s1'), d.session('bob/coder/s1')
    j = job(a)
    with opened(j / 'stdin', os.O_WRONLY) as fd:
        taken = 0
        while (r := errno_of(os.write, fd, b'x' * 65536)) is None:
            taken += 65536
            assert taken < 16 << 20
        assert r == 'EDQUOT' and taken >= 4 << 20
    assert 'spool_max' in a.error()
    assert len(output(b, 'wc -c; head -c 1000000 /dev/zero', stdin='y' * 100000)) > 1000000
    j.start('wc -c')  # what was taken is there, and makes room when it has been read
    assert j.out() == f'{taken}\n'
    j.exit()
    k = job(a, 'k')
    write(k / 'stdin', 'x' * 3000000)
    os.rmdir(k.dir)
    write(job(a, 'l') / 'stdin', 'x' * 3000000)


def test_stdin_streams_while_the_job_runs(fresh):
    j = job(fresh)
    want = os.urandom(1 << 20) * 20

    def feed():
        with open(j / 'stdin', 'wb') as f:
            j.start('sha256sum')
            f.write(want)
        return True

    assert in_child(feed)
    assert j.out().split()[0] == hashlib.sha256(want).hexdigest()


def test_a_job_that_does_not_read_holds_its_writer_up(fresh):
    j = job(fresh)
    with opened(j / 'stdin', os.O_WRONLY | os.O_NONBLOCK) as fd:
        j.start('sleep 1000')
        j.wait_state('running')
        taken = 0
        poll = select.poll()
        poll.register(fd, select.POLLOUT)

        def full():
            """For a while: what was taken is handed on, up to the job's pipe, which makes room again."""
            nonlocal taken
            while errno_of(os.write, fd, b'x' * 65536) is None:
                taken += 65536
                assert taken < 16 << 20
            return poll.poll(500) == []

        wait_for(full)
        assert errno_of(os.write, fd, b'x') == 'EAGAIN'
        assert poll.poll(0) == []
        j.ctl('kill')
        j.exit()
        assert poll.poll(30000)
        assert errno_of(os.write, fd, b'x') == 'EPIPE'


def test_a_job_that_closed_its_input_breaks_the_pipe(fresh):
    j = job(fresh)
    with opened(j / 'stdin', os.O_WRONLY) as fd:
        j.start('exec <&-; echo closed; sleep 1000')
        j.wait_output('closed')

        def fill():
            for _ in range(1000):
                os.write(fd, b'x' * 65536)

        assert errno_of(in_child, fill) == 'EPIPE'
    j.ctl('kill')


def test_stdin_of_an_ended_job_is_a_broken_pipe(fresh):
    run(fresh, 'true')
    assert errno_of(write, Job(fresh, 'j') / 'stdin', 'x') == 'EPIPE'


def test_binary_input_comes_back_untouched(fresh):
    want = bytes(range(256)) * 3000
    j = job(fresh, stdin=want).start('cat')
    assert j.exit() == '0' and j.raw('stdout') == want


# ── terminals ───────────────────────────────────────────────────────────────────────────────

def test_a_tty_job_has_a_terminal_of_that_size(fresh):
    j = job(fresh, tty='100x30').start('tty; stty size; echo err >&2')
    assert j.exit() == '0'
    out = j.text('stdout').replace('\r\n', '\n')
    assert out.splitlines()[0].startswith('/dev/pts/') and '30 100' in out and 'err' in out
    assert j.text('stderr') == ''


def test_a_terminal_is_resized(fresh):
    j = job(fresh, tty='80x24')
    j.start('trap "stty size; exit 0" WINCH; echo ready; while :; do sleep 0.05; done')
    j.wait_output('ready')
    j.ctl('resize 132x43')
    assert j.exit() == '0'
    assert '43 132' in j.text('stdout')


def test_a_terminal_is_resized_while_its_sandbox_is_made(mount):
    s = mount().session()
    j = job(s, tty='80x24').start(f'{GO}; stty size')
    j.ctl('resize 101x33')
    write(s / 'go', '')
    assert j.out() == '33 101\r\n'


def test_a_job_without_a_terminal_has_none(fresh):
    assert 'not a tty' in run(fresh, 'tty')[1]


def test_typing_into_a_terminal_works(fresh):
    j = job(fresh, tty='80x24')
    with opened(j / 'stdin', os.O_WRONLY) as fd:
        j.start('echo ready; read x; echo "got <$x>"')
        j.wait_output('ready')
        os.write(fd, b'hello\r')
        j.wait_output('got <hello>')
    assert j.exit() == '0'


def test_resizing_without_a_terminal_is_refused(fresh):
    j = job(fresh).start('sleep 1000')
    j.wait_state('running')
    assert errno_of(j.ctl, 'resize 80x24') == 'ENOTTY'
    assert 'no terminal' in fresh.error()
    j.ctl('kill')
    assert open_errno(j / 'ctl', os.O_RDONLY) == 'EACCES'


def sha_of_seq(n):
    return hashlib.sha256(''.join(f'{i}\n' for i in range(1, n + 1)).encode()).hexdigest()


def test_a_full_disk_keeps_a_job_waiting_and_loses_nothing(mount, workdir):
    with tmpfs(f'{workdir}/state', '2m') as state:
        d = mount(state_dir=state)
        d.expect('stored: No space left on device')  # also the session's name, if the job is quicker
        s = d.session().use()
        j = job(s).start('seq 1000000; echo error >&2; exit 3')
        wait_for(lambda: 'the job waits' in d.log())
        assert j.state() == 'running'
        sh(f'mount -o remount,size=64m {state}')
        assert j.exit() == '3'
        assert hashlib.sha256(j.raw('stdout')).hexdigest() == sha_of_seq(1000000)
        assert j.text('stderr') == 'error\n' and j.status()['dropped_bytes'] == 0
        d.stop()


def test_on_a_full_disk_a_timeout_still_ends_a_job(mount, workdir):
    with tmpfs(f'{workdir}/state', '2m') as state:
        d = mount(state_dir=state)
        d.expect('not (be )?stored.*: No space left on device')
        s, room = d.session().use(), os.statvfs(state)
        write(f'{state}/filler', b'x' * (room.f_bavail * room.f_frsize - (256 << 10)))  # it is full long before that time
        j = job(s, timeout='1').start('seq 1000000; sleep 100')
        assert j.exit() == 'signal 15'
        assert j.status()['dropped_bytes'] > 0
        d.stop()
