# SPDX-License-Identifier: Apache-2.0
"""An engine that listens on tcp and wants certificates: the backend's client reaches it, the mount refuses it."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
from types import SimpleNamespace

import pytest

from engine import running_engine
from harness import BUILD, environment, mount_fails, run

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

ASK = f'{BUILD}/tests/backend/engine_ask'


def certificate(name, authority, directory, *extensions):
    """NAME.pem and NAME-key.pem, of the authority in `directory`, or one of its own."""
    words = ['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2',
             '-subj', f'/CN={name}', '-keyout', f'{directory}/{name}-key.pem', '-out', f'{directory}/{name}.pem']
    if authority:
        words += ['-CA', f'{directory}/{authority}.pem', '-CAkey', f'{directory}/{authority}-key.pem',
                  '-addext', 'basicConstraints=critical,CA:FALSE']
    for extension in extensions:
        words += ['-addext', extension]
    run(*words)


def client_files(top, name, authority):
    """What DOCKER_CERT_PATH names: certificates of our client, and who is believed."""
    os.mkdir(f'{top}/{name}')
    shutil.copy(f'{top}/{authority}.pem', f'{top}/{name}/ca.pem')
    if name != 'bare':
        shutil.copy(f'{top}/client.pem', f'{top}/{name}/cert.pem')
        shutil.copy(f'{top}/client-key.pem', f'{top}/{name}/key.pem')
    return f'{top}/{name}'


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


@pytest.fixture(scope='module', name='tls')
def _tls():
    if not shutil.which('openssl'):
        pytest.skip('no openssl here')
    with tempfile.TemporaryDirectory(prefix='wsmfs-tls-') as top:
        certificate('authority', None, top)
        certificate('other', None, top)
        certificate('server', 'authority', top, 'subjectAltName=IP:127.0.0.1', 'extendedKeyUsage=serverAuth')
        certificate('client', 'authority', top, 'extendedKeyUsage=clientAuth')
        host = f'tcp://127.0.0.1:{free_port()}'
        with running_engine(more=['-H', host, '--tlsverify', '--tlscacert', f'{top}/authority.pem', '--tlscert',
                                  f'{top}/server.pem', '--tlskey', f'{top}/server-key.pem']):
            yield SimpleNamespace(host=host, top=top, right=client_files(top, 'right', 'authority'),
                                  wrong=client_files(top, 'wrong', 'other'), bare=client_files(top, 'bare', 'authority'))


def ask(tls, **variables):
    """(the answer, None) or (None, what was said)"""
    env = {k: v for k, v in environment().items() if not k.startswith('DOCKER_')}
    env |= {'DOCKER_CONFIG': f'{tls.top}/config', **variables}
    done = subprocess.run([ASK, '/version'], env=env, capture_output=True, text=True, timeout=120, check=False)
    return (json.loads(done.stdout), None) if done.returncode == 0 else (None, done.stderr)


def test_with_the_right_certificates_the_engine_answers(tls):
    answer, said = ask(tls, DOCKER_HOST=tls.host, DOCKER_TLS_VERIFY='1', DOCKER_CERT_PATH=tls.right)
    assert answer and answer['ApiVersion'], said


def test_an_engine_that_is_not_believed_is_refused(tls):
    answer, said = ask(tls, DOCKER_HOST=tls.host, DOCKER_TLS_VERIFY='1', DOCKER_CERT_PATH=tls.wrong)
    assert answer is None and said.startswith('EACCES: ') and tls.host[6:] in said and 'certificate' in said
    answer, said = ask(tls, DOCKER_HOST=tls.host, DOCKER_TLS='1', DOCKER_CERT_PATH=tls.wrong)  # nothing is checked
    assert answer, said


def test_who_shows_no_certificate_is_told_so(tls):
    answer, said = ask(tls, DOCKER_HOST=tls.host, DOCKER_TLS_VERIFY='1', DOCKER_CERT_PATH=tls.bare)
    assert answer is None and said.startswith('EACCES: ') and 'TLS' in said
    answer, said = ask(tls, DOCKER_HOST=tls.host)  # and no TLS at all
    assert answer is None and 'does not answer like a Docker engine' in said


def test_contexts_that_the_docker_command_makes(tls):
    def make(name, more, directory):
        words = f'host={tls.host},ca={directory}/ca.pem,cert={directory}/cert.pem,key={directory}/key.pem{more}'
        run('docker', 'context', 'create', name, '--docker', words,
            env=os.environ | {'DOCKER_CONFIG': f'{tls.top}/config'})
    make('right', '', tls.right)
    make('wrong', '', tls.wrong)
    make('careless', ',skip-tls-verify=true', tls.wrong)
    assert ask(tls, DOCKER_CONTEXT='right')[0]
    assert 'certificate' in ask(tls, DOCKER_CONTEXT='wrong')[1]
    assert ask(tls, DOCKER_CONTEXT='careless')[0]


def test_the_mount_refuses_an_engine_that_may_be_elsewhere(mount, tls):
    d = mount.prepare()
    d.source = 'docker:base:1'
    d.opts['basedir'] = d.basedir
    d.extra_env = {'DOCKER_HOST': tls.host, 'DOCKER_TLS_VERIFY': '1', 'DOCKER_CERT_PATH': tls.right}
    text = mount_fails(d)[1]
    assert 'only a local one, on a unix socket' in text and f'https://{tls.host[6:]}' in text and 'DOCKER_HOST' in text
