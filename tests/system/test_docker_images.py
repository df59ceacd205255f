# SPDX-License-Identifier: Apache-2.0
"""Where the images of the docker backend come from: a registry, or a directory with a Dockerfile."""

import json
import os
import stat
import time

import pytest

from conftest import ended
from engine import running_engine
from harness import errno_of, mount_fails, processes_of, read, wait_for, write
from jobs import Job, output
from registry import SECRET, USER, base64_of, running_registry

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]
MIB = 1 << 20
BIG_BYTES = 12 * MIB


@pytest.fixture(scope='module', name='engine')
def _engine():
    with running_engine() as engine:
        yield engine


@pytest.fixture(scope='module', name='registry')
def _registry():
    with running_registry() as registry:
        yield registry


@pytest.fixture(scope='module', name='locked')
def _locked():
    with running_registry(locked=True) as registry:
        yield registry


@pytest.fixture(name='docker')
def _docker(mount, engine, workdir):
    """docker(option=value, …): a mount whose workspaces are containers, with a configuration of the docker command of
    its own in `login`."""
    def make(image='', backend='', start=True, config='', **opts):
        d = mount.prepare()
        d.source = f'docker:{image}'
        d.opts.update(basedir=d.basedir, **opts)
        d.set_config(f'{config}\n[backend docker]\nhost = {engine.host}\n{backend}\n')
        d.login = f'{workdir}/login'
        d.bin = f'{workdir}/bin'
        os.makedirs(d.login, exist_ok=True)
        os.makedirs(d.bin, exist_ok=True)
        d.extra_env = {'DOCKER_CONFIG': d.login, 'PATH': f'{d.bin}:{os.environ["PATH"]}'}
        return d.start() if start else d
    yield make
    ended(mount, engine)
    for image in set(images(engine)) - {'base:1'}:
        engine('rmi', '-f', image, check=False)


def images(engine, *words):
    return engine('images', '--format', '{{.Repository}}:{{.Tag}}', *words).split()


@pytest.fixture(name='big', scope='module')
def _big(engine):
    """big(): an image at the engine with a layer of its own that takes a moment to be pulled."""
    container = engine('create', '--network', 'none', 'base:1', '/bin/sh')
    path = f'{engine.top}/big'
    with open(path, 'wb') as f:
        f.write(os.urandom(BIG_BYTES))
    engine('cp', path, f'{container}:/big')
    engine('commit', container, 'big:1')
    engine('save', '-o', path, 'big:1')
    engine('rm', container)

    def make():
        engine('load', '-i', path)
        return 'big:1'
    yield make
    os.unlink(path)


def steps(s):
    """What `progress` says, to its end."""
    return [json.loads(line) for line in read(f'{s.control}/progress').splitlines()]


def so_far(s):
    """What `progress` says until now."""
    fd = os.open(f'{s.control}/progress', os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(fd, 1 << 16).decode()
    except BlockingIOError:
        return ''
    finally:
        os.close(fd)


def ready(s):
    s.ctl('provision')
    assert s.state() == 'ready'
    return s


def refused(s, errno, *words):
    """Provisioning fails so, the error says so, files work, and nothing is left."""
    s.daemon.expect('cannot be pulled|can be built|is not at the engine')
    assert errno_of(s.ctl, 'provision') == errno, s.error()
    text = s.error()
    for word in words:
        assert word in text
    write(s / 'f', 'works')
    assert read(s / 'f') == 'works'
    return text


def helper(d, script, name='fake'):
    path = f'{d.bin}/docker-credential-{name}'
    write(path, f'#!/bin/sh\n{script}\n')
    os.chmod(path, 0o755)


# ── pulling ─────────────────────────────────────────────────────────────────────────────────

def test_an_image_is_pulled_at_the_first_access_and_progress_counts_it(docker, engine, registry, big):
    ref = registry.push(engine, big(), 'lib/big:1')
    engine('rmi', 'big:1')
    s = docker(ref).session()
    os.listdir(s.path)
    s.wait_state('ready', 'failed')
    assert s.state() == 'ready', s.error()
    pulls = [line for line in steps(s) if line['step'] == 'pull']
    assert pulls[-1]['text'] == '2 of 2 layers'
    sizes = [(line.get('done_bytes', 0), line.get('total_bytes', 0)) for line in pulls]
    assert sizes == sorted(sizes)
    assert sizes[-1][0] == sizes[-1][1] >= BIG_BYTES
    assert any(0 < done < total for done, total in sizes)
    assert output(s, 'ls -l /big').split()[4] == str(BIG_BYTES)


@pytest.mark.parametrize('entry', [None, {'auth': base64_of(USER, 'wrong')}, {'auth': 'no base64 at all'}])
def test_without_the_right_credentials_it_is_eacces(docker, engine, locked, entry):
    ref = locked.push(engine, 'base:1', 'lib/base:1')
    d = docker(ref, start=False)
    if entry:
        locked.allow(d.login, **entry)
    refused(d.start().session(), 'EACCES', ref)
    assert engine.containers() == []


def test_the_credentials_of_docker_login_are_used(docker, engine, locked):
    ref = locked.push(engine, 'base:1', 'lib/base:1')
    d = docker(ref, start=False)
    locked.allow(d.login)
    ready(d.start().session())


@pytest.mark.parametrize('key', ['credHelpers', 'credsStore'])
def test_a_credential_helper_is_asked(docker, engine, locked, key):
    ref = locked.push(engine, 'base:1', 'lib/base:1')
    d = docker(ref, start=False)
    write(f'{d.login}/config.json', json.dumps({key: {locked.host: 'fake'} if key == 'credHelpers' else 'fake'}))
    helper(d, f'read host; echo "$host" > {d.login}/asked; umask >> {d.login}/asked\n'
              f'echo \'{json.dumps({"ServerURL": locked.host, "Username": USER, "Secret": SECRET})}\'')
    ready(d.start().session())
    assert read(f'{d.login}/asked') == f'{locked.host}\n0077\n'
    assert stat.S_IMODE(os.stat(f'{d.login}/asked').st_mode) == 0o600


def test_what_a_helper_that_fails_says_is_in_the_error(docker, engine, locked):
    ref = locked.push(engine, 'base:1', 'lib/base:1')
    d = docker(ref, start=False)
    write(f'{d.login}/config.json', json.dumps({'credHelpers': {locked.host: 'fake'}}))
    helper(d, 'echo "the vault is shut" >&2; echo "more" >&2; exit 1')
    s = d.start().session()
    assert 'more' not in refused(s, 'EACCES', ref, 'docker-credential-fake fails: the vault is shut')
    os.unlink(f'{d.bin}/docker-credential-fake')
    refused(s, 'EACCES', ref, 'docker-credential-fake')


def test_a_helper_that_fails_does_not_keep_from_what_is_public(docker, engine, registry):
    ref = registry.push(engine, 'base:1', 'lib/base:1')
    d = docker(ref, start=False)
    write(f'{d.login}/config.json', json.dumps({'credsStore': 'none'}))
    ready(d.start().session())


def test_a_helper_that_hangs_ends_with_the_provisioning(docker, engine, locked):
    ref = locked.push(engine, 'base:1', 'lib/base:1')
    d = docker(ref, start=False, provision_timeout=2)
    write(f'{d.login}/config.json', json.dumps({'credHelpers': {locked.host: 'fake'}}))
    helper(d, f'cd {d.login}; echo $$ > pid; sleep 1000 & wait')
    d.expect('failed')
    s = d.start().session()
    begin = time.monotonic()
    assert errno_of(s.ctl, 'provision') == 'ETIMEDOUT'
    assert time.monotonic() - begin < 20
    pid = read(f'{d.login}/pid').strip()
    wait_for(lambda: not os.path.exists(f'/proc/{pid}'), 20)
    wait_for(lambda: not [p for p in processes_of(d.login) if p != d.pid], 20)


def test_a_pull_ends_when_the_workspace_is_closed(docker, engine, locked):
    """Held in the middle by the credential helper."""
    ref = locked.push(engine, 'base:1', 'lib/base:1')
    d = docker(ref, start=False)
    write(f'{d.login}/config.json', json.dumps({'credHelpers': {locked.host: 'fake'}}))
    helper(d, f'echo $$ > {d.login}/pid; exec sleep 1000')
    d.expect('cancelled|closed')
    s = d.start().session()
    os.listdir(s.path)
    wait_for(lambda: os.path.exists(f'{d.login}/pid') and read(f'{d.login}/pid'))
    begin = time.monotonic()
    write(s / 'f', 'meanwhile')
    assert read(s / 'f') == 'meanwhile' and s.state() == 'provisioning'
    s.ctl('close')
    assert time.monotonic() - begin < 20
    assert not os.path.exists(f'/proc/{read(f"{d.login}/pid").strip()}')
    assert engine.containers() == []


def test_an_image_that_the_registry_does_not_know_is_enxio(docker, engine, registry):
    refused(docker(f'{registry.host}/lib/nothing:1').session(), 'ENXIO', f'{registry.host}/lib/nothing:1')
    assert engine.containers() == []


def test_a_registry_that_is_not_there_is_enxio(docker):
    refused(docker('127.0.0.1:1/lib/base:1').session(), 'ENXIO', '127.0.0.1:1/lib/base:1', 'refused')


def test_a_broken_layer_is_an_error_until_it_is_mended(docker, engine, registry, big):
    ref = registry.push(engine, big(), 'lib/broken:1')
    engine('rmi', 'big:1')
    blob = registry.largest_blob()
    with open(blob, 'r+b') as f:
        f.seek(MIB)
        good = f.read(16)
        f.seek(MIB)
        f.write(b'x' * 16)
    s = docker(ref).session()
    refused(s, 'ENXIO', ref)
    assert engine.containers() == []
    with open(blob, 'r+b') as f:
        f.seek(MIB)
        f.write(good)
    ready(s)


def test_pull_always_sees_a_tag_that_has_moved(docker, engine, registry, big):
    ref = registry.push(engine, 'base:1', 'lib/moved:1')
    s = docker(ref, 'pull = always').session()
    assert output(s, 'ls /', 'a').split().count('big') == 0
    registry.push(engine, big(), 'lib/moved:1')
    s.ctl('close')
    assert output(s, 'ls /', 'b').split().count('big') == 1


def test_pull_missing_asks_no_registry_for_what_is_there(docker, engine):
    engine('tag', 'base:1', '127.0.0.1:1/lib/base:1')
    ready(docker('127.0.0.1:1/lib/base:1').session())


def test_an_image_that_went_away_is_enxio_until_it_is_back(docker, engine):
    engine('tag', 'base:1', 'passing:1')
    s = docker('passing:1', 'pull = never').session()
    assert output(s, 'echo one', 'a') == 'one\n'
    s.ctl('close')
    engine('rmi', 'passing:1')
    refused(s, 'ENXIO', 'passing:1')
    write(s / 'g', 'kept')
    end = Job(s, 'b').make().start('cat g').exit()
    assert end.startswith('error ') and 'passing:1' in end
    engine('tag', 'base:1', 'passing:1')
    ready(s)
    assert output(s, 'cat g', 'c') == 'kept'


def test_eight_sessions_share_one_pull(docker, engine, locked, big):
    ref = locked.push(engine, big(), 'lib/shared:1')
    engine('rmi', 'big:1')
    d = docker(ref, start=False)
    write(f'{d.login}/config.json', json.dumps({'credHelpers': {locked.host: 'fake'}}))
    # Each pull asks it; held until all have come, so that they are there at the same time.
    helper(d, f'echo asked >> {d.login}/asked; while [ ! -e {d.login}/go ]; do sleep 0.05; done\n'
              f'echo \'{json.dumps({"Username": USER, "Secret": SECRET})}\'')
    d.start()
    sessions = [d.session(f'user{i}/coder/s1') for i in range(8)]
    for s in sessions:
        os.listdir(s.path)
    for s in sessions:  # each has asked for a container, and is told that there is no image
        wait_for(lambda s=s: '"create"' in so_far(s))
    write(f'{d.login}/go', '')
    for s in sessions:
        s.wait_state('ready', 'failed')
        assert s.state() == 'ready', s.error()
        assert any(line['step'] == 'pull' for line in steps(s))
    assert read(f'{d.login}/asked') == 'asked\n'
    assert len(engine.containers()) == 8


# ── building ────────────────────────────────────────────────────────────────────────────────

@pytest.fixture(name='tree')
def _tree(workdir):
    """tree(Dockerfile, name=text, …): a directory to build from."""
    def make(dockerfile, **files):
        top = f'{workdir}/tree'
        os.makedirs(top, exist_ok=True)
        write(f'{top}/Dockerfile', dockerfile)
        for name, text in files.items():
            write(f'{top}/{name}', text)
        return top
    return make


def built(engine):
    return images(engine, 'wsmfs-build')


def test_a_directory_is_built_once_and_again_when_it_changes(docker, engine, tree):
    top = tree('FROM base:1\nCOPY greeting /greeting\nRUN cat /greeting > /copied\n', greeting='hello')
    d = docker(backend=f'build = {top}')
    a, b = d.session('alice/coder/s1'), d.session('bob/coder/s1')
    assert output(a, 'cat /copied') == 'hello'
    assert [line['text'] for line in steps(a) if line['step'] == 'build'] == [
        top, 'Step 1/3 : FROM base:1', 'Step 2/3 : COPY greeting /greeting', 'Step 3/3 : RUN cat /greeting > /copied']
    assert output(b, 'cat /copied') == 'hello'
    assert not [line for line in steps(b) if line['step'] == 'build']
    assert len(built(engine)) == 1
    write(f'{top}/greeting', 'changed')
    assert output(a, 'cat /copied', 'k') == 'hello'  # it runs
    a.ctl('close')
    assert output(a, 'cat /copied', 'l') == 'changed'
    assert len(built(engine)) == 2
    write(f'{top}/greeting', 'hello')
    b.ctl('close')
    assert output(b, 'cat /copied', 'k') == 'hello'
    assert len(built(engine)) == 2


def test_what_is_sent_is_the_directory_without_what_is_ignored(docker, engine, tree):
    top = tree('FROM base:1\nCOPY . /all\n', secret='x')
    os.makedirs(f'{top}/deep/er')
    write(f'{top}/.dockerignore', 'secret\n**/*.log\n!deep/kept.log\n')
    write(f'{top}/deep/a.log', '')
    write(f'{top}/deep/kept.log', '')
    write(f'{top}/deep/er/run', '')
    os.chmod(f'{top}/deep/er/run', 0o751)
    os.symlink('/no/where', f'{top}/link')
    write(f'{top}/ä', 'also this')
    s = docker(backend=f'build = {top}/').session()
    assert output(s, 'ls -A /all /all/deep', 'a').split() == ['/all:', '.dockerignore', 'Dockerfile', 'deep', 'link', '??',
                                                              '/all/deep:', 'er', 'kept.log']
    assert output(s, 'cat /all/ä', 'c') == 'also this'
    listing = output(s, 'ls -ln /all/deep/er /all', 'b')
    assert '-rwxr-x--x    1 0        0' in listing and 'link -> /no/where' in listing
    image = built(engine)
    s.ctl('close')
    write(f'{top}/secret', 'another')
    ready(s)
    assert built(engine) == image


@pytest.mark.parametrize('line,errno,word', [
    ('RUN echo this is why >&2; exit 3', 'EIO', 'Step 2/2 : RUN echo this is why >&2; exit 3: '),
    ('COPY nothing /', 'EIO', 'nothing'),
    ('FROM 127.0.0.1:1/none:1', 'EIO', 'refused'),
    ('COLOUR red', 'EINVAL', 'COLOUR'),
])
def test_a_build_that_fails_says_why(docker, engine, tree, line, errno, word):
    s = docker(backend=f'build = {tree(f"FROM base:1{chr(10)}{line}{chr(10)}")}').session()
    text = refused(s, errno, word)
    assert ('it said: this is why' in text) == line.startswith('RUN')
    assert s.error() == text
    assert engine.containers() == [] and built(engine) == []
    tree('FROM base:1\n')
    ready(s)


def test_a_base_image_is_pulled_with_credentials_too(docker, engine, locked, big, tree):
    ref = locked.push(engine, big(), 'lib/big:1')
    engine('rmi', 'big:1')
    backend = f'build = {tree(f"FROM {ref}{chr(10)}RUN echo made > /made{chr(10)}")}'
    refused(docker(backend=backend).session(), 'EACCES', 'Step 1/2 : FROM')
    d = docker(backend=backend, start=False)
    locked.allow(d.login)
    s = d.start().session()
    assert output(s, 'cat /made') == 'made\n'
    texts = [f'{line["step"]} {line["text"]}' for line in steps(s)]
    assert texts.index(f'build Step 1/2 : FROM {ref}') < texts.index('pull 2 of 2 layers')
    assert texts.index('pull 2 of 2 layers') < texts.index('build Step 2/2 : RUN echo made > /made')


def test_a_directory_that_is_not_there_is_enxio(docker, workdir):
    s = docker(backend=f'build = {workdir}/none').session()
    s.daemon.expect('cannot be opened|no Dockerfile')
    assert errno_of(s.ctl, 'provision') == 'ENXIO'
    assert f'{workdir}/none' in s.error()
    os.mkdir(f'{workdir}/none')
    assert errno_of(s.ctl, 'provision') == 'ENXIO'
    assert 'no Dockerfile' in s.error()


@pytest.mark.parametrize('image,backend,word', [
    ('base:1', 'build = /tmp', '`build`'), ('', 'image = base:1\nbuild = /tmp', '`build`'), ('', 'build = here', 'absolute'),
    ('', 'build =', 'build'), ('', 'build = /tmp\npull = never', 'pull'), ('base:1', 'build_network = none', 'build_network'),
])
def test_a_build_that_makes_no_sense_refuses_the_mount(docker, image, backend, word):
    assert word in mount_fails(docker(image, backend, start=False))[1]


def test_steps_have_the_network_of_jobs_or_their_own(docker, engine, tree):
    """Interfaces are counted: an engine without a bridge has networks none and host."""
    top = tree('FROM base:1\nRUN /bin/busybox wc -l < /proc/net/dev > /lines\n')
    lines = []
    for backend in ['', 'network = host', 'build_network = host', 'network = host\nbuild_network = none']:
        s = docker(backend=f'build = {top}\n{backend}').session()
        lines.append(int(output(s, 'cat /lines')))
        s.ctl('destroy')
        engine('rmi', '-f', *built(engine))
        engine('image', 'prune', '-f')
    with open('/proc/net/dev', encoding='ascii') as f:
        here = len(f.readlines())
    assert lines == [3, here, here, 3]


@pytest.mark.parametrize('how', ['close', 'timeout'])
def test_a_build_ends_when_nobody_waits_for_it(docker, engine, tree, how):
    top = tree('FROM base:1\nRUN echo begun; sleep 1000\n')
    d = docker(backend=f'build = {top}', provision_timeout=3 if how == 'timeout' else '5m')
    d.expect('cancelled|closed|failed|time')
    s = d.session()
    os.listdir(s.path)
    wait_for(lambda: engine.containers('-q'))
    if how == 'close':
        s.ctl('close')
    else:
        s.wait_state('failed')
    wait_for(lambda: not engine.containers(), 60)
    assert built(engine) == []


def test_many_sessions_share_one_build_and_whoever_leaves_ends_nobodys(docker, engine, tree):
    """The first is closed in the middle: another one builds then."""
    top = tree('FROM base:1\nRUN sleep 2\nRUN cat /proc/sys/kernel/random/uuid > /once\n')
    d = docker(backend=f'build = {top}')
    d.expect('cancelled|closed')
    first = d.session('first/coder/s1')
    os.listdir(first.path)
    wait_for(lambda: engine.containers('-q'))
    others = [d.session(f'user{i}/coder/s1') for i in range(4)]
    for s in others:
        os.listdir(s.path)
    first.ctl('close')
    for s in others:
        s.wait_state('ready', 'failed', timeout=100)
        assert s.state() == 'ready', s.error()
    assert len({output(s, 'cat /once') for s in others}) == 1
    assert len(built(engine)) == 1


def test_a_directory_that_changes_while_it_is_built_from_is_built_anew(docker, engine, tree):
    """Between the look at it and its being sent the helper is asked, which changes it here."""
    top = tree('FROM base:1\nCOPY a /a\n', a='before')
    d = docker(backend=f'build = {top}', start=False)
    write(f'{d.login}/config.json', json.dumps({'credHelpers': {'127.0.0.1:1': 'fake'}}))
    helper(d, f'[ -e {d.login}/once ] || printf after > {top}/a; : > {d.login}/once\n'
              'echo credentials not found in native keychain; exit 1')
    s = d.start().session()
    assert output(s, 'cat /a') == 'after'
    assert os.path.exists(f'{d.login}/once') and len(built(engine)) == 1
    write(f'{top}/a', 'before')
    s.ctl('close')
    assert output(s, 'cat /a', 'k') == 'before'


def test_a_build_elsewhere_delays_no_job(docker, engine, tree):
    slow = docker(backend=f'build = {tree("FROM base:1" + chr(10) + "RUN sleep 1000" + chr(10))}')
    slow.expect('cancelled|closed')
    other = docker('base:1').session()
    ready(other)
    waits = slow.session()
    os.listdir(waits.path)
    wait_for(lambda: len(engine.containers('-q')) == 2)
    begin = time.monotonic()
    assert output(other, 'echo quick') == 'quick\n'
    assert read(slow.session('bob/coder/s1') / '.wsm/state') == 'absent\n'
    assert time.monotonic() - begin < 5
    waits.ctl('close')
