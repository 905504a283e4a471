"""Records of a stream: a Kafka topic, or a folder of files that grow (docs/stream.md)."""
