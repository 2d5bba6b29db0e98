//! Spreads the refreshes of ready resources, so that a fleet that was published together is not due together again.
//!
//! Each resource's max age is shortened by a share of its own, which its id alone decides: every process gives the same
//! one, after a restart and in the sentinel beside it. Never is a max age lengthened.

use std::time::Duration;

/// How much of their max age refreshes may be early, in percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spread(u8);

impl Spread {
    /// Every refresh at its max age exactly, as the specification has it.
    pub const OFF: Self = Self(0);

    /// The most that may be asked for: half, since a fleet's events grow by as much as half of the spread.
    pub const MAX_PERCENT: u8 = 50;

    /// Takes a percentage up to [`Spread::MAX_PERCENT`].
    pub fn from_percent(percent: u8) -> Option<Self> {
        (percent <= Self::MAX_PERCENT).then_some(Self(percent))
    }

    /// The percentage.
    pub fn percent(self) -> u8 {
        self.0
    }

    /// The max age of one resource: at most `age`, and more than `age` less the spread.
    pub(super) fn shorten(self, age: Duration, id: &str) -> Duration {
        if self == Self::OFF {
            return age;
        }
        // The longest age times 50 times 65,535 still fits, and the result is shorter than the age.
        let early = age.as_nanos() * u128::from(self.0) * u128::from(share(id)) / (100 << 16);
        age.saturating_sub(Duration::from_nanos_u128(early))
    }
}

/// A number of 16 bits that is the resource's own: FNV-1a, which is the same everywhere and for ever, unlike the
/// hashers of the standard library. Its high bits hardly see the last bytes, and its low bits little else: hence the
/// last step.
fn share(id: &str) -> u16 {
    let hash = id
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let [high, low, ..] = (hash ^ (hash >> 32)).wrapping_mul(0xff51_afd7_ed55_8ccd).to_be_bytes();
    u16::from_be_bytes([high, low])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AGE: Duration = Duration::from_mins(30);

    #[test]
    fn a_percentage_is_bounded() {
        assert_eq!(Spread::from_percent(0), Some(Spread::OFF));
        assert_eq!(Spread::from_percent(50).map(Spread::percent), Some(50));
        assert_eq!(Spread::from_percent(51), None);
    }

    #[test]
    fn a_share_is_the_same_for_ever() {
        // Computed once; another number would move every refresh of every fleet at an upgrade.
        assert_eq!(share(""), 0x1b3e);
        assert_eq!(share("019a0c5e-0000-7000-8000-000000000001"), 0x7873);
    }

    #[test]
    fn without_a_spread_an_age_stays_as_it_is_however_long() {
        for age in [Duration::ZERO, AGE, Duration::MAX] {
            assert_eq!(Spread::OFF.shorten(age, "a"), age);
        }
    }

    #[test]
    fn a_fleet_that_was_published_together_is_due_evenly_over_the_spread() {
        let spread = Spread(20);
        for name in [|index| format!("019a0c5e-0000-7000-8000-{index:012}"), |index: u32| format!("cls-{index}")] {
            let mut minutes = [0_u32; 6];
            for index in 0..6000 {
                let early = AGE.saturating_sub(spread.shorten(AGE, &name(index))).as_secs() / 60;
                minutes[usize::try_from(early).unwrap()] += 1;
            }
            assert!(minutes.iter().all(|count| (850..1150).contains(count)), "{minutes:?}");
        }
    }

    proptest! {
        #[test]
        fn an_age_is_never_lengthened_and_shortened_by_less_than_the_spread(
            percent in 1_u8..=50, nanos in 1_u64.., id in ".{0,40}",
        ) {
            let age = Duration::from_nanos(nanos);
            let shortened = Spread(percent).shorten(age, &id);
            prop_assert!(shortened <= age);
            prop_assert!(shortened.as_nanos() * 100 > age.as_nanos() * u128::from(100 - percent));
        }

        #[test]
        fn no_age_is_too_long(percent in 0_u8..=50, id in ".{0,40}") {
            let shortened = Spread(percent).shorten(Duration::MAX, &id);
            prop_assert!(shortened >= Duration::MAX / 2);
        }
    }
}
