use proptest::prelude::*;

use super::*;

fn one(frame: &[u8]) -> Frame<'_> {
    let (decoded, length) = decode(frame).unwrap().unwrap();
    assert_eq!(length, frame.len());
    for end in 0..frame.len() {
        assert_eq!(decode(&frame[..end]), Ok(None), "{end}");
    }
    decoded
}

#[test]
fn methods_are_decoded() {
    let mut out = Vec::new();
    put_method(&mut out, 1, (60, 120), |out| {
        out.extend_from_slice(&7_u64.to_be_bytes());
        out.push(1);
    });
    let method = Method::Nack {
        tag: 7,
        multiple: true,
    };
    assert_eq!(one(&out), Frame::Method { channel: 1, method });
    out.clear();
    put_method(&mut out, 0, (10, 50), |out| {
        out.extend_from_slice(&[1, 64]);
        put_short(out, b"CONNECTION_FORCED");
        out.extend_from_slice(&[0; 4]);
    });
    let reason = Reason {
        code: 320,
        text: b"CONNECTION_FORCED",
        cause: (0, 0),
    };
    assert_eq!(
        one(&out),
        Frame::Method {
            channel: 0,
            method: Method::Close(reason)
        }
    );
}

#[test]
fn position_key_and_id_are_found_among_all_types_of_headers() {
    let mut out = Vec::new();
    put_frame(&mut out, 2, 1, |out| {
        out.extend_from_slice(&[0, 60, 0, 0]);
        out.extend_from_slice(&5_u64.to_be_bytes());
        out.extend_from_slice(&0xBF80_u16.to_be_bytes());
        put_short(out, b"text/plain");
        put_sized(out, |out| {
            put_member(out, "n", None);
            put_member(out, "b", Some(b"\xff"));
            put_short(out, b"t");
            out.push(b'F');
            put_sized(out, |out| {
                put_short(out, b"i");
                out.extend_from_slice(b"I\0\0\0\x01");
            });
            put_member(out, super::super::POSITION_HEADER, Some(b"0/1 7"));
            put_member(out, super::super::KEY_HEADER, Some(b"key"));
        });
        out.extend_from_slice(&[2, 0]);
        for text in [b"", b"", b"9", b"i"] as [&[u8]; 4] {
            put_short(out, text);
        }
    });
    let expected = Frame::Header {
        channel: 1,
        body: 5,
        position: Some(b"0/1 7"),
        key: Some(b"key"),
        message_id: Some(b"i"),
        // Behind class, weight and size, before the end of the frame.
        properties: &out[19..out.len() - 1],
    };
    assert_eq!(one(&out), expected);
}

#[test]
fn what_is_no_amqp_is_refused() {
    assert_eq!(decode(b"AMQP\0\0\x09\x01"), Err(ProtocolError::Version));
    let long = [1, 0, 0, 0xff, 0xff, 0xff, 0xff];
    assert!(decode(&long).is_err(), "before its payload is there");
    assert!(decode(b"HTTP/1.1 400 Bad Request").is_err());
    assert!(decode(&[8, 0, 0, 0, 0, 0, 0, 0]).is_err(), "another end");
    let mut deep = Vec::new();
    put_frame(&mut deep, 2, 1, |out| {
        out.extend_from_slice(&[0; 12]);
        out.extend_from_slice(&0x2000_u16.to_be_bytes());
        let mut value = b"V".to_vec();
        for _ in 0..100 {
            let mut outer = b"A".to_vec();
            put_sized(&mut outer, |out| out.extend_from_slice(&value));
            value = outer;
        }
        put_sized(out, |out| {
            put_short(out, b"a");
            out.extend_from_slice(&value);
        });
    });
    assert!(decode(&deep).is_err());
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes: Vec<u8>) {
        let _ = decode(&bytes);
    }

    #[test]
    fn no_payload_panics(
        kind in 1..=3_u8,
        class in prop::sample::select(vec![10_u16, 20, 40, 50, 60, 85]),
        number in 10..=121_u16,
        payload in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut out = Vec::new();
        put_frame(&mut out, kind, 1, |out| {
            out.extend_from_slice(&class.to_be_bytes());
            out.extend_from_slice(&number.to_be_bytes());
            out.extend_from_slice(&payload);
        });
        if let Ok(decoded) = decode(&out) {
            prop_assert_eq!(decoded.unwrap().1, out.len());
        }
    }
}
