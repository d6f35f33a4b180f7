#!/bin/sh
# Makes what is missing, and a new certificate for the balancer a month before the old one ends.
#   /authority  its key; nothing but this script sees it
#   /tls        ca.pem for clients, balancer.pem and balancer.key
#   /passwords  grafana
set -eu
umask 077
balancer=10001 grafana=472

give() { # USER FROM TO: a copy that nobody else can read
    install -m 400 "$2" "$3.new"
    chown "$1" "$3.new"
    mv "$3.new" "$3"
}

if [ ! -f /authority/ca.key ]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 3650 -subj "/CN=gradwire" \
        -addext basicConstraints=critical,CA:TRUE,pathlen:0 -addext keyUsage=critical,keyCertSign \
        -keyout /authority/ca.new -out /authority/ca.pem
    mv /authority/ca.new /authority/ca.key
fi
install -m 644 /authority/ca.pem /tls/ca.pem

if [ "$(cat /tls/names 2>/dev/null)" != "$NAMES" ] ||
    ! openssl x509 -in /tls/balancer.pem -noout -checkend 2592000 >/dev/null 2>&1; then
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj "/CN=gradwire balancer" \
        -addext "subjectAltName=$NAMES" -addext extendedKeyUsage=serverAuth \
        -keyout /authority/balancer.key -out /authority/balancer.csr
    openssl x509 -req -in /authority/balancer.csr -copy_extensions copy -days 397 \
        -CA /authority/ca.pem -CAkey /authority/ca.key -out /authority/balancer.pem
    install -m 644 /authority/balancer.pem /tls/balancer.pem
    give $balancer /authority/balancer.key /tls/balancer.key
    rm /authority/balancer.*
    echo "$NAMES" >/tls/names
fi

if [ ! -f /passwords/grafana ]; then
    openssl rand -hex 16 >/authority/password
    give $grafana /authority/password /passwords/grafana
    rm /authority/password
fi
chmod 755 /tls /passwords
