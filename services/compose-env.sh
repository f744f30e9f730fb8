#!/bin/sh
# Writes .env beside docker-compose.yml: a random secret for every name that docker-compose.yml asks for. What is there is never
# changed, since the volumes know the old passwords; names that are missing are added. Mode 0600.
set -eu
cd "$(dirname "$0")/.."
umask 077

names="REDIS_PASSWORD POSTGRES_PASSWORD CLICKHOUSE_PASSWORD TOLLGATE_SERVICE_TOKEN TOLLGATE_ADMIN_TOKEN TOLLGATE_VIEWER_TOKEN"

touch .env
chmod 600 .env
# A last line without its newline would swallow the first one added.
[ ! -s .env ] || [ -z "$(tail -c 1 .env)" ] || echo >>.env
added=0
for name in $names; do
  if ! grep -q "^$name=." .env; then
    # Hexadecimal: it stands in URLs unescaped.
    secret=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
    [ ${#secret} -eq 64 ] || { echo "no random bytes to be had" >&2; exit 1; }
    echo "$name=$secret" >>.env
    added=$((added + 1))
  fi
done
echo ".env: $added secrets added, the others kept"
