#!/bin/sh
# certificates.sh FOLDER NAME...: an authority of one's own, and certificates of it for `coordinator` and each NAME.
set -eu
umask 077
folder=$1
shift
mkdir -p "$folder"
cd "$folder"
[ -e ca.key ] || openssl req -x509 -newkey rsa:3072 -nodes -days 365 -subj "/CN=tffcl" -keyout ca.key -out ca.pem
for name in coordinator "$@"; do
  openssl req -new -newkey rsa:3072 -nodes -subj "/CN=$name" -addext "subjectAltName=DNS:$name" \
    -keyout "$name.key" -out "$name.csr"
  openssl x509 -req -in "$name.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -copy_extensions copy -days 365 \
    -out "$name.pem"
  rm "$name.csr"
  chmod 644 "$name.pem" "$name.key"  # read in the container by its own user; the folder is its owner's alone
done
