//! Acknowledgements in any order to the one position that may be confirmed.
