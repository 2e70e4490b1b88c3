"""A mail server for the tests: smtp_server.py starttls|tls|plain CERTIFICATE KEY.

Prints its port, then each mail as one line of JSON. It accepts the user `ann` with the password `open sesame`, and
rejects or postpones some recipients."""
import asyncio
import json
import ssl
import sys

from aiosmtpd.smtp import SMTP, AuthResult

mode, certificate, key = sys.argv[1:]


class Handler:
    async def handle_RCPT(self, server, session, envelope, address, options):
        if address.startswith("nobody@"):
            return "550 5.1.1 no such user"
        if address.startswith("hang@"):
            await asyncio.Event().wait()
        if address.startswith("later@"):
            return "450 4.2.1 mailbox busy"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        mail = {
            "from": envelope.mail_from,
            "to": envelope.rcpt_tos,
            "encrypted": session.ssl is not None or mode == "tls",
            "authenticated": session.authenticated,
            "content": envelope.content.decode(),
        }
        print(json.dumps(mail), flush=True)
        return "250 OK"


def authenticate(server, session, envelope, mechanism, data):
    is_right = (data.login, data.password) == (b"ann", b"open sesame")
    return AuthResult(success=is_right, handled=is_right)


def smtp(context):
    return SMTP(
        Handler(),
        hostname="mail.test",
        tls_context=context if mode == "starttls" else None,
        require_starttls=mode == "starttls",
        authenticator=authenticate,
        auth_required=True,
        auth_require_tls=mode == "starttls",
    )


async def main():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    loop = asyncio.get_running_loop()
    implicit = context if mode == "tls" else None
    server = await loop.create_server(lambda: smtp(context), "127.0.0.1", 0, ssl=implicit)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
