"""Send a number of bytes from one host of a lab to another over TCP, and print how long it took: the receiver's clock.

python transfer.py SENDER RECEIVER BYTES, run on every host.
"""

import os
import socket
import sys
import time

PORT = 5000


def main() -> None:
    """Be the sender, the receiver, or neither."""
    sender, receiver, num_bytes = map(int, sys.argv[1:])
    if int(os.environ["NODE_RANK"]) == receiver:
        receive(num_bytes)
    elif int(os.environ["NODE_RANK"]) == sender:
        send(f"10.83.0.{receiver + 1}", num_bytes)


def receive(num_bytes: int) -> None:
    """Read it all."""
    with socket.create_server(("", PORT)) as server:
        connection, _ = server.accept()
        with connection:
            start, left = time.perf_counter(), num_bytes
            while left and (chunk := connection.recv(min(left, 1 << 20))):
                left -= len(chunk)
            print("seconds", time.perf_counter() - start, flush=True)
            sys.exit(1 if left else 0)


def send(address: str, num_bytes: int) -> None:
    """Write it all, once the receiver is there."""
    for _ in range(200):
        try:
            connection = socket.create_connection((address, PORT))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    with connection:
        connection.sendall(bytes(num_bytes))


if __name__ == "__main__":
    main()
