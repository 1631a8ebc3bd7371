"""The federation: task stream, partition, client, server, round, evaluation and the random streams of all of them."""
