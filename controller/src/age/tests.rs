//! Files of age: those of others are read, and what is written is read again, or refused.

use std::io::{BufReader, Read as _, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::stream::CHUNK;
use super::*;

/// A key pair, and a file for it that was made by another program from the specification.
const SECRET: &str = "AGE-SECRET-KEY-190CQVWUPCWHXR6RUCTJCG2VVDCJQZHXH6R2H2SZ90UM3S9433QFSRU8HAX";
const PUBLIC: &str = "age1zdkzp7vjg5p6zw3amt3wv8p6nmvvm2e9npuxxkt4knz3htnxg4zqyt46h8";
const HEADER: &str = "age-encryption.org/v1\n-> X25519 nI37e/u3yp+S9sR7qeBYPw5/Vel3eQlAe/cGxYaQjQI\n\
                      l1B6DvI4gFWCBp3W7wItyI7pPb5SGRsp1pA94tLckXQ\n--- NDJZiWwgcypOOXiCpkHFkqk+/NJiDZk5oM9P/j1010I\n";
const PAYLOAD: &str = "Gxax31OLoS3D+X7buFyqcCNbtZ7f8ATwKCtH7M6YQY2Z1nchu/gG4GbCRUuc6cg=";

fn of_another_program() -> Vec<u8> {
    [HEADER.as_bytes(), &STANDARD.decode(PAYLOAD).unwrap()].concat()
}

fn identities(text: &str) -> Vec<Identity> {
    Identity::read_all(text).unwrap()
}

/// A key pair of 32 bytes that are all the same.
fn pair(byte: u8) -> (Recipient, Identity) {
    let secret = StaticSecret::from([byte; 32]);
    (Recipient(PublicKey::from(&secret).to_bytes()), Identity(secret))
}

fn encrypted(text: &[u8], recipients: &[Recipient]) -> (Vec<u8>, FileKey) {
    let (mut to, key) = Encrypted::begin(Vec::new(), recipients).unwrap();
    to.write_all(text).unwrap();
    (to.finish().unwrap(), key)
}

fn decrypted(file: &[u8], identities: &[Identity]) -> Result<Vec<u8>, AgeError> {
    let mut text = Vec::new();
    Decrypted::begin(BufReader::new(file), identities)?.read_to_end(&mut text)?;
    Ok(text)
}

#[test]
fn x02_a_file_that_another_program_encrypted_is_read() {
    let key = identities(&format!("# created: 2026-11-27T08:00:00Z\n# public key: {PUBLIC}\n\n{SECRET}\n"));
    assert_eq!(decrypted(&of_another_program(), &key).unwrap(), b"a small secret\n");
    let public = PublicKey::from(&key[0].0).to_bytes();
    assert_eq!(PUBLIC.parse(), Ok(Recipient(public)), "they are a pair");
}

#[test]
fn x02_what_is_encrypted_is_read_by_each_recipient_and_by_nobody_else() {
    let ((one, own), (other, others), (_, stranger)) = (pair(1), pair(2), pair(3));
    for length in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 7] {
        let text: Vec<u8> = (0..=250).cycle().take(length).collect();
        let (file, key) = encrypted(&text, &[one.clone(), other.clone()]);
        assert!(file.starts_with(MAGIC));
        for identity in [&own, &others] {
            let identity = Identity(identity.0.clone());
            assert!(decrypted(&file, &[identity]).unwrap() == text, "{length} bytes");
        }
        let mut again = Vec::new();
        Decrypted::begin_with(&file[..], &key).unwrap().read_to_end(&mut again).unwrap();
        assert!(again == text, "{length} bytes, by the file's own key");
    }
    let (file, _) = encrypted(b"x", &[one]);
    assert!(matches!(decrypted(&file, &[stranger]), Err(AgeError::OtherIdentity)));
}

#[test]
fn x02_an_encrypted_file_that_was_cut_or_changed_anywhere_is_refused() {
    let key = identities(SECRET);
    let whole = of_another_program();
    for cut in 0..whole.len() {
        assert!(decrypted(&whole[..cut], &key).is_err(), "cut at {cut}");
    }
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut changed = whole.clone();
            changed[at] ^= 1 << bit;
            assert!(decrypted(&changed, &key).is_err(), "bit {bit} of byte {at}");
        }
    }
    assert!(decrypted(&[&whole[..], b"x"].concat(), &key).is_err(), "something stands behind it");
}

#[test]
fn x02_chunks_that_are_missing_or_stand_elsewhere_are_refused() {
    let (recipient, identity) = pair(1);
    let (file, _) = encrypted(&vec![7; 3 * CHUNK], &[recipient]);
    let chunk = CHUNK + 16;
    let begin = file.len() - 3 * chunk;
    let (head, chunks) = file.split_at(begin);
    let [first, second, third] = [0, 1, 2].map(|nth| &chunks[nth * chunk..(nth + 1) * chunk]);
    let key = [identity];
    assert!(decrypted(&[head, first, second, third].concat(), &key).is_ok());
    for order in [
        &[first, second][..],
        &[first, third],
        &[second, first, third],
        &[first, second, second],
        &[first, second, third, third],
        &[],
    ] {
        assert!(decrypted(&[head, &order.concat()].concat(), &key).is_err());
    }
}

#[test]
fn x02_what_is_no_recipient_or_identity_says_what_is_and_does_not_show_it() {
    assert_eq!(SECRET.parse::<Recipient>(), Err(BadRecipient::Secret));
    assert_eq!(SECRET.to_lowercase().parse::<Recipient>(), Err(BadRecipient::Secret));
    let misspelt = PUBLIC.replacen('z', "q", 1);
    let followed = format!("{PUBLIC} ");
    for text in ["", "age1", &*misspelt, "ssh-ed25519 AAAA", "age1yubikey1qqqq", &*followed, "bc1qqqq"] {
        assert_eq!(text.parse::<Recipient>(), Err(BadRecipient::Unknown), "{text:?}");
    }
    for (text, why) in [
        ("", BadIdentities::Empty),
        ("# nothing\n\n", BadIdentities::Empty),
        ("# public\nAGE-SECRET-KEY-1QQ\n", BadIdentities::Line(2)),
        (PUBLIC, BadIdentities::Line(1)),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\n", BadIdentities::Line(1)),
    ] {
        assert_eq!(Identity::read_all(text).err(), Some(why), "{text:?}");
    }
    for said in [BadRecipient::Secret.to_string(), BadIdentities::Line(2).to_string()] {
        assert!(!said.contains("190CQV"), "{said}");
    }
    // Whoever is agreed on with, the same comes out.
    assert!(!is_contributory(&[0; 32]));
}
