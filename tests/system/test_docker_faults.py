# SPDX-License-Identifier: Apache-2.0
"""An engine that answers badly, late or not at all: a proxy stands in front of a real one."""

import os
import threading
import time

import pytest

from engine_proxy import Behind, Cut, Late, Say, Stall, Swallow, Trickle, proxied, status
from harness import SLOWNESS, errno_of, mount_fails, read, wait_for, write
from jobs import Job, output

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

LOOK = r'GET /containers/wsm-[^/]*/json'
CREATE = r'POST /containers/create'
START = r'POST /containers/[^/]*/start'
STOP = r'POST /containers/[^/]*/stop'
REMOVE = r'DELETE /containers/'
HTML = '<html><body>It works!</body></html>'
ID = '0123456789abcdef' * 4


@pytest.fixture(name='proxy')
def _proxy(engine):
    with proxied(engine) as proxy:
        yield proxy


@pytest.fixture(name='faulty')
def _faulty(proxy, docker):  # in this order: the mount ends before the proxy
    """faulty(option=value, …): as docker(), with the proxy as its engine."""
    def make(image='base:1', backend='', **opts):
        d = docker(image, start=False, **opts)
        d.set_config(f'[backend docker]\nhost = {proxy.host}\n{backend}\n')
        d.expect('failed: |what an earlier run has left')
        return d.start()
    yield make
    proxy.heal()  # the mount, which ends after this, is to find an engine


def use_files(s, text):
    """They answer at once, whatever the engine does: what is asserted next to this still holds."""
    write(s / 'f', text)
    assert read(s / 'f') == text
    assert os.listdir(s.path) == ['f']


def all_is_well_again(engine, proxy, s):
    proxy.heal()
    s.ctl('provision')
    assert output(s, 'cat f', 'after') == read(s / 'f')
    s.ctl('close')
    assert engine.containers() == []


# ── answers ─────────────────────────────────────────────────────────────────────────────────

def json_says(text):
    return Say(f'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n{text}')


# The request, what comes in place of the answer, the errno, what the sentence says.
BAD_ANSWERS = {
    'ping: not HTTP': ('GET /_ping', lambda: Say('SSH-2.0-OpenSSH\r\n'), 'EIO', 'does not answer like'),
    'ping: a web server': ('GET /_ping', lambda: status(200, HTML), 'EIO', 'does not answer like'),
    'ping: not ready': ('GET /_ping', lambda: status(503, '{"message":"starting up"}'), 'EHOSTUNREACH', 'starting up'),
    'ping: a reset': ('GET /_ping', lambda: Say(''), 'EHOSTUNREACH', 'broke off'),
    'look: a web server': (LOOK, lambda: status(200, HTML), 'EIO', 'describes no container'),
    'look: nobody has that page': (LOOK, lambda: status(404, HTML), 'EIO', 'makes no sense'),
    'look: a list': (LOOK, lambda: json_says('[]'), 'EIO', 'describes no container'),
    'look: no state': (LOOK, lambda: json_says(f'{{"Id":"{ID}","Config":{{}}}}'), 'EIO', 'describes no container'),
    'look: a number for an id': (LOOK, lambda: json_says('{"Id":7,"State":{"Status":"running"},"Config":{}}'), 'EIO',
                                 'describes no container'),
    'look: deep': (LOOK, lambda: json_says('[' * 5000 + ']' * 5000), 'EIO', 'describes no container'),
    'look: plain words': (LOOK, lambda: status(500, 'no space left'), 'EIO', 'no space left'),
    'look: another protocol': (LOOK, lambda: Say('HTTP/1.1 101 Now\r\nUpgrade: tcp\r\n\r\n'), 'EIO', '101'),
    'look: endless': (LOOK, lambda: Say('HTTP/1.1 200 OK\r\n\r\n', b'x' * 65536), 'EIO', 'without end'),
    'look: an endless header': (LOOK, lambda: Say('HTTP/1.1 200 OK\r\n', b'A: b\r\n' * 4096), 'EIO', 'answer'),
    'look: cut in the header': (LOOK, lambda: Cut(30), 'EHOSTUNREACH', 'broke off'),
    'create: cut in the body': (CREATE, lambda: Cut(260), 'EHOSTUNREACH', 'broke off'),
    'create: nothing of it is told': (CREATE, lambda: Cut(0), 'EHOSTUNREACH', 'broke off'),
    'create: no id': (CREATE, lambda: status(201, '{}'), 'EIO', 'makes no sense'),
    'create: a path for an id': (CREATE, lambda: status(201, '{"Id":"../x"}'), 'EIO', 'makes no sense'),
    'create: a failure': (CREATE, lambda: status(500, '{"message":"disk full"}'), 'EIO', 'disk full'),
    'start: a web server': (START, lambda: status(200, HTML), 'EIO', 'makes no sense'),
    'start: plain words': (START, lambda: status(500, 'no cgroup'), 'EIO', 'no cgroup'),
}


def test_a_bad_answer_is_an_error_with_a_sentence_and_nothing_is_left_over(faulty, proxy, engine):
    d = faulty()
    for i, (what, (request, fault, errno, words)) in enumerate(BAD_ANSWERS.items()):
        s = d.session(f'alice/a{i}/s1')
        spoilt = proxy.fail(request, fault())
        if request == 'GET /_ping':  # it is asked but once
            d.restart()
        use_files(s, what)
        assert errno_of(s.ctl, 'provision') == errno, what
        assert words in s.error(), (what, s.error())
        assert spoilt.hits, what
        use_files(s, what + ' still')
        all_is_well_again(engine, proxy, s)


# ── no answers ──────────────────────────────────────────────────────────────────────────────

# Whether the engine does what it is asked or not: nobody learns of it.
@pytest.mark.parametrize('request_,fault', [(LOOK, Stall), (CREATE, Stall), (CREATE, Swallow), (START, Stall),
                                            (r'HEAD .*/archive', Swallow)])
def test_without_an_answer_the_time_limit_ends_it_and_nothing_is_left_over(faulty, proxy, engine, request_, fault):
    s = faulty(backend='timeout = 1s').session()
    mute = proxy.fail(request_, fault())
    use_files(s, 'x')
    wait_for(lambda: mute.holding or mute.hits > 1)
    assert errno_of(s.ctl, 'provision') == 'ETIMEDOUT'
    assert 'not answered in time' in s.error()
    if request_ != LOOK:
        assert engine.containers() == []
    all_is_well_again(engine, proxy, s)


@pytest.mark.parametrize('fault', [lambda: Cut(10), Swallow], ids=['cut', 'swallowed'])
def test_a_start_whose_answer_is_lost_is_found_to_have_been_made(faulty, proxy, engine, fault):
    s = faulty(backend='timeout = 1s').session()
    lost = proxy.fail(START, fault())
    use_files(s, 'x')
    s.ctl('provision')
    assert lost.hits == 1 and len(engine.containers('-q')) == 1
    all_is_well_again(engine, proxy, s)


def test_what_an_engine_does_after_it_was_given_up_is_found_again(faulty, proxy, engine):
    s = faulty(backend='timeout = 1s').session()
    late = proxy.fail(CREATE, Late(times=1))
    use_files(s, 'x')
    assert errno_of(s.ctl, 'provision') in ('ETIMEDOUT', None)  # a second try may have begun
    wait_for(lambda: late.done)
    all_is_well_again(engine, proxy, s)


def test_a_container_that_is_being_made_when_its_workspace_closes_is_removed(faulty, proxy, engine):
    """The engine would make it all the same once it has begun, and nobody would look for it any more."""
    s = faulty().session()
    behind = proxy.fail(CREATE, Behind(3, times=1))  # a cancelled request ends within one
    use_files(s, 'x')
    wait_for(lambda: behind.holding)
    s.ctl('close')
    os.makedirs(f'{s.daemon.basedir}/.wsmfs/run/{s.id()}')  # an engine that has begun has looked for it already
    behind.go.set()
    wait_for(lambda: behind.done)
    assert engine.containers() == []
    all_is_well_again(engine, proxy, s)


def test_a_slow_answer_is_waited_for(faulty, proxy):
    s = faulty().session()
    slow = proxy.fail(LOOK, Trickle(lambda: time.sleep(0.001)))
    s.ctl('provision')
    assert slow.hits
    proxy.heal()
    assert output(s, 'echo here') == 'here\n'


def test_an_answer_that_trickles_past_the_limit_does_not_count(faulty, proxy, engine):
    gate = threading.Event()
    s = faulty(backend='timeout = 1s').session()
    slow = proxy.fail(LOOK, Trickle(lambda: gate.wait(0.1)))
    use_files(s, 'x')
    assert errno_of(s.ctl, 'provision') == 'ETIMEDOUT'
    assert slow.hits
    gate.set()
    all_is_well_again(engine, proxy, s)


def test_a_stalled_start_delays_nobody_else(faulty, proxy, engine):
    d = faulty()
    slow = d.session('alice/slow/s1')
    stalled = proxy.fail(START, Stall(times=1))
    use_files(slow, 'x')
    wait_for(lambda: stalled.holding)
    for i in range(20):
        os.listdir(d.session(f'alice/other{i}/s1').path)
    for i in range(20):
        other = d.session(f'alice/other{i}/s1')
        other.ctl('provision')
        assert other.state() == 'ready'
    assert output(d.session('alice/other7/s1'), 'echo here') == 'here\n'
    use_files(slow, 'y')
    assert stalled.holding and slow.state() == 'provisioning'
    proxy.heal()
    d.ctl('close-all')
    assert engine.containers() == []


def test_a_stalled_start_ends_with_provision_timeout_and_its_container_goes(faulty, proxy, engine):
    d = faulty(provision_timeout=2)
    s = d.session()
    stalled = proxy.fail(START, Stall())
    use_files(s, 'x')
    wait_for(lambda: stalled.holding)
    assert len(engine.containers()) == 1
    assert errno_of(s.ctl, 'provision') == 'ETIMEDOUT'
    assert 'provision_timeout' in s.error()
    wait_for(lambda: not stalled.holding, what='the request to be given up')
    wait_for(lambda: not engine.containers(), what='its container to go')
    all_is_well_again(engine, proxy, s)


@pytest.mark.parametrize('request_', [LOOK, CREATE, START])
def test_a_close_ends_a_provisioning_that_is_stalled(faulty, proxy, engine, request_):
    s = faulty().session()
    stalled = proxy.fail(request_, Stall(times=1))
    use_files(s, 'x')
    wait_for(lambda: stalled.holding)
    s.ctl('close')
    wait_for(lambda: not stalled.holding)
    assert engine.containers() == []
    all_is_well_again(engine, proxy, s)


def test_a_black_hole_for_an_engine_harms_no_files_and_no_running_job(faulty, proxy, engine):
    d = faulty(backend='timeout = 5s')
    before, s = d.session('bob/coder/s1'), d.session()
    assert output(before, 'echo here', 'a') == 'here\n'
    hole = proxy.fail('', Stall())
    use_files(s, 'x')
    wait_for(lambda: hole.holding)

    def answers_at_once():
        begin = time.monotonic()
        read(f'{d.mnt}/.wsm/status')
        os.statvfs(d.mnt)
        os.listdir(d.mnt)
        os.listdir(s.path)
        return time.monotonic() - begin
    assert min(answers_at_once() for _ in range(5)) < 0.05 * SLOWNESS
    assert output(before, 'echo here', 'b') == 'here\n'  # its guest is there
    assert hole.holding
    assert errno_of(s.ctl, 'provision') == 'ETIMEDOUT'
    j = Job(s, 'j').make()
    # Within the back-off the write knows it, else a fresh try has to fail first.
    assert errno_of(j.start, 'true') == 'ETIMEDOUT' or j.exit().startswith('error ')
    assert proxy.socket in s.error()
    proxy.heal()
    before.ctl('close')
    all_is_well_again(engine, proxy, s)


# ── ends ────────────────────────────────────────────────────────────────────────────────────

BAD_ENDS = {
    'the look is a web server': (LOOK, lambda: status(200, HTML), 'EPROTO'),
    'the look is cut': (LOOK, lambda: Cut(100), 'EHOSTUNREACH'),
    'nobody has that page': (LOOK, lambda: status(404, HTML), 'EPROTO'),
    'the removal is a web server': (REMOVE, lambda: status(200, HTML), 'EPROTO'),
    'nobody removes such pages': (REMOVE, lambda: status(404, HTML), 'EPROTO'),
    'the removal fails': (REMOVE, lambda: status(500, '{"message":"device busy"}'), 'EIO'),
    'the stop is cut': (STOP, lambda: Say(''), 'EHOSTUNREACH'),
}


def test_an_end_without_a_clear_answer_forgets_no_container(faulty, proxy, engine):
    d = faulty(grace=1)
    for i, (what, (request, fault, errno)) in enumerate(BAD_ENDS.items()):
        s = d.session(f'alice/a{i}/s1')
        s.ctl('provision')
        write(s / 'f', what)
        proxy.fail(request, fault())
        assert errno_of(s.ctl, 'close') == errno, what
        assert s.state() == 'failed' and s.error(), what
        assert len(engine.containers()) == 1, what
        all_is_well_again(engine, proxy, s)


# ── images ──────────────────────────────────────────────────────────────────────────────────

PULLS = {
    'cut': ('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n11\r\n{"status":"Done"}\r\n', 'EHOSTUNREACH', 'broke off'),
    'of unknown length': ('HTTP/1.1 200 OK\r\n\r\n{"status":"Done"}\n', 'EIO', 'cut short'),
    'in a line': ('HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"status"', 'EIO', 'cut short'),
    'words': ('HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n', 'EIO', 'no JSON'),
    'an error': ('HTTP/1.1 200 OK\r\nContent-Length: 27\r\n\r\n{"errorDetail":{"code":13}}', 'ENXIO', 'cannot be pulled'),
    'nothing, and there is still no image': ('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n', 'ENXIO', 'is not at the engine'),
}


def test_a_pull_that_does_not_end_well_is_none(faulty, proxy, engine):
    d = faulty(image='nowhere.invalid/late:1')
    try:
        for i, (what, (answer, errno, words)) in enumerate(PULLS.items()):
            s = d.session(f'alice/a{i}/s1')
            pull = proxy.fail('POST /images/create', Say(answer))
            use_files(s, what)
            assert errno_of(s.ctl, 'provision') == errno, what
            assert words in s.error(), (what, s.error())
            assert pull.hits, what
            proxy.heal()
        engine('tag', 'base:1', 'nowhere.invalid/late:1')
        all_is_well_again(engine, proxy, s)
    finally:
        engine('rmi', 'nowhere.invalid/late:1', check=False)


def test_a_pull_that_stalls_ends_with_provision_timeout(faulty, proxy, engine):
    s = faulty(image='nowhere.invalid/none:1', provision_timeout=2).session()
    stalled = proxy.fail('POST /images/create', Stall())
    use_files(s, 'x')
    wait_for(lambda: stalled.holding)
    assert errno_of(s.ctl, 'provision') == 'ETIMEDOUT'
    wait_for(lambda: not stalled.holding, what='the pull to be given up')
    assert engine.containers() == []


# ── elsewhere ───────────────────────────────────────────────────────────────────────────────

def test_an_engine_that_may_be_elsewhere_refuses_the_mount(docker):
    d = docker(start=False)
    for host in ('tcp://127.0.0.1:2375', 'localhost:2376'):
        d.set_config(f'[backend docker]\nhost = {host}\n')
        text = mount_fails(d)[1]
        assert 'only a local one, on a unix socket' in text and host.rsplit(':', 1)[1] in text


def test_a_limit_that_makes_no_sense_refuses_the_mount(docker):
    d = docker(start=False)
    for value in ('0', 'soon', '2h', '-1'):
        d.set_config(f'[backend docker]\ntimeout = {value}\n')
        assert 'timeout' in mount_fails(d)[1]
