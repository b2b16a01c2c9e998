"""Everything an environment author uses: scaffold, verifier proof, audit, manifest, publication checks.

scaffold            write a new resources server, environment or benchmark (`gym env init`)
gymnasium           base class of environments that are played step by step
verifier_fixture    `VERIFIER_FIXTURE`: cases a verifier promises to decide (`gym env test NAME`)
audit               run a verifier against right, wrong and cheating replies and broken rows (`gym env audit`)
replies, cheats     build the replies an audit sends
proof               `VerifierProof`: the same checks as tests of a server folder
manifest            `manifest.yaml`; `manifest_checks` compares it with the files around it
runner              run a fixture or an audit in the interpreter of the server
"""
